#!/usr/bin/env bash
# Install Python {python} and what the judge needs into the folder `environment` beside this one.
set -euo pipefail
cd "$(dirname "$0")"
place="$(dirname "$PWD")/environment"
# Where everybody can read it: an answer may be judged as a user of its own.
export UV_PYTHON_INSTALL_DIR="$place.python" UV_CACHE_DIR="$place.cache"
uv=(uv)
if ! command -v uv >/dev/null; then
    if ! python3 -m pip --version; then apt-get update && apt-get install -y python3-pip; fi
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install uv
    uv=(python3 -m uv)
fi
"${{uv[@]}}" venv --python {python} "$place"
"${{uv[@]}}" pip install --python "$place/bin/python" \
    --index-url https://download.pytorch.org/whl/cpu "torch=={torch}"
"${{uv[@]}}" pip install --python "$place/bin/python" -c constraints.txt -r requirements.txt
rm -rf "$UV_CACHE_DIR"
