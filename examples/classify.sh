#!/usr/bin/env bash
# Classify the rows of a table, then let jq count them.
#
#   examples/classify.sh reviews.csv labels.jsonl
#
# reviews.csv has a column "review". The schema lets the model say nothing but a label, so that .json is one;
# rows that are equal are computed once. Running it again goes on where it stood.
set -euo pipefail
input=$1 output=$2
llmrs batch "$input" --output "$output" --resume --temperature 0 --max-tokens 20 \
    --prompt-template 'Is this review positive, negative or mixed? {review}' \
    --schema '{"enum": ["positive", "negative", "mixed"]}'
jq --raw-output '[.json, .review] | @tsv' "$output"
jq --raw-output --slurp 'group_by(.json)[] | "\(length) \(.[0].json)"' "$output" >&2
