#!/bin/sh
# gpu_check.py where nothing can be installed: a machine with this tree, a CUDA PyTorch, a C++ compiler and no network.
# What its Python lacks of our libraries comes along as wheels.
#
#   benchmarks/gpu_check.sh wheels [3.12]     here: fetches them for that Python into .whl
#   benchmarks/gpu_check.sh [OPTIONS]         there: options of gpu_check.py; the table is kept in $OUT, too, if there is one
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
libraries="structlog msgspec tenacity boto3 botocore s3transfer jmespath python3-etcd3 expecttest"

if [ "${1:-}" = wheels ]; then
  version=${2:-3.12}
  rm -rf .whl
  # As old as any that is tried: what our libraries have, to the last one.
  platforms=""
  for one in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
    platforms="$platforms --platform ${one}_x86_64"
  done
  # shellcheck disable=SC2086
  $python -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
    $platforms --dest .whl $libraries
  ls .whl
  exit 0
fi

if [ -d .whl ]; then
  site=$(mktemp -d)
  $python -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl
  PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  export PYTHONPATH
fi
export PYTHONUNBUFFERED=1
exec $python benchmarks/gpu_check.py --json "${OUT:-.}/gpu_check.json" "$@"
