#!/usr/bin/env bash
# PrairieLearn starts this for each submission, in a container of the image beside the question.
cd "$(dirname "$0")/.."
chmod 700 tests
mkdir -p -m 700 results
exec "${{ATTNCOURSE:-/attncourse}}/environment/bin/python" -P -m attncourse.grading.outbox.hosted \
    prairielearn tests student results/results.json
