#!/usr/bin/env bash
# A commit message for what is staged.
#
#   git commit --edit -m "$(examples/commit-message.sh)"
#
# A diff that does not fit the model's context is an error, never cut in silence.
set -euo pipefail
if git diff --staged --quiet; then
    echo "Nothing is staged." >&2
    exit 1
fi
message=$(git diff --staged --unified=1 |
    llmrs chat -p "Write a commit message of one line for this change. Say what it does, not how." \
        --temperature 0 --max-tokens 60 --no-save --quiet)
echo "${message%%$'\n'*}" # the first line
