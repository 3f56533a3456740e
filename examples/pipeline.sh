#!/usr/bin/env bash
# Chat in a pipeline: what is piped in follows the question, and only the answer comes out.
#
#   cat notes.txt | examples/pipeline.sh
#   cat notes.txt | examples/pipeline.sh "Which people are named here?"
#
# LLMRS_MODEL names the model; without it, it is the default one.
set -euo pipefail
question=${1:-"Sum this up in one sentence."}
llmrs chat -p "$question" --temperature 0 --max-tokens 100 --no-save | fold -s -w 80
