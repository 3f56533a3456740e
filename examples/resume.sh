#!/usr/bin/env bash
# A batch that is killed, and goes on as if nothing had happened: each finished row is on disk at once.
#
#   examples/resume.sh prompts.jsonl answers.jsonl
set -euo pipefail
input=$1 output=$2
llmrs batch "$input" --output "$output" --quiet &
job=$!
while kill -0 "$job" 2>/dev/null && ! [ -s "$output" ]; do sleep 0.05; done
kill -9 "$job" 2>/dev/null || true # a power cut, a full memory, somebody in a hurry
wait "$job" 2>/dev/null || true
echo "killed after $(wc -l <"$output") of $(wc -l <"$input") rows" >&2
llmrs batch "$input" --output "$output" --resume
