#!/bin/sh
# What nerf does with wrong command lines and files, and that a resumed training is the same.
#   nerf_test.sh arguments|files|resume|techniques PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --rays 32 --width 8 --coarse 4 --fine 4 --views 4 --hold-out 2 --size 12 \
--least-psnr 0 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

# compare FOLDER FOLDER: the same pictures
compare() {
  for picture in "$1"/*; do
    cmp "$picture" "$2/${picture##*/}" || failures=$((failures + 1))
  done
}

chair=$data/scenes/deckchair

case $what in
arguments)
  expect 0 'default 600' --help
  for option in --steps --rays --accumulate --fine; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  for option in --width --coarse --views --hold-out; do
    expect 2 "$option is '1'; it must be a whole number from 2" "$option=1"
  done
  expect 2 'it must be a number above 0' --lr 0
  expect 2 'it must be a number above 0' --near -1
  expect 2 'near has to be less than --far' --near 3 --far 3
  expect 2 'it must be on or off' --checkpoint maybe
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'a whole number from 0 to 100' --least-psnr 101
  expect 2 'chunk is 33, more than the 32 of --rays' --chunk 33
  expect 2 "can't go with --checkpoint off" --chunk 8 --checkpoint off
  expect 2 '--data is empty' --data=
  ;;
files)
  expect 0 'all checks passed' --data "$chair/model.obj"
  printf 'ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\n' \
    >"$scratch/a.ply"
  printf 'property float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n' \
    >>"$scratch/a.ply"
  cp "$scratch/a.ply" "$scratch/half.ply"
  printf '10 20 30\n20 30 30\n30 20 10\n3 0 1 2\n' >>"$scratch/a.ply"
  printf '10 20 30\n20 3' >>"$scratch/half.ply"
  expect 0 'all checks passed' --data "$scratch/a.ply"
  refuse 'half.ply: ends or breaks in vertex 1 of 3' --data "$scratch/half.ply"
  echo junk >"$scratch/junk.json"
  echo junk >"$scratch/junk.obj"
  echo junk >"$scratch/junk.ply"
  head -c 10000 "$chair/model.obj" >"$scratch/model.obj"
  refuse 'missing.json: no such file\|without nlohmann-json' --data "$scratch/missing.json"
  refuse 'missing.obj: no such file' --data "$scratch/missing.obj"
  refuse 'missing.ply: no such file' --data "$scratch/missing.ply"
  refuse 'junk.json: is no JSON\|without nlohmann-json' --data "$scratch/junk.json"
  refuse 'junk.obj: has no triangles' --data "$scratch/junk.obj"
  refuse 'junk.ply: is no PLY file' --data "$scratch/junk.ply"
  refuse 'model.mtl: no such file' --data "$scratch/model.obj"
  cp "$chair"/*.mtl "$chair"/*.png "$scratch"
  refuse 'model.obj:[0-9]*: \|model.obj: has no triangles' --data "$scratch/model.obj"
  refuse 'are read from .obj and .ply files' --data "$data/scenes/README.md"
  refuse 'no training state' --resume "$chair/model.obj"
  refuse 'missing.pt: no such file' --resume "$scratch/missing.pt"
  refuse "can't write" --save "$scratch/missing/state.pt"
  refuse 'junk.obj' --out "$scratch/junk.obj"
  refuse 'junk.obj' --report "$scratch/junk.obj"
  refuse 'none can be held out' --views 2 --hold-out 8
  refuse "pixels can't be shrunk by 13" --shrink 13
  expect 0 '^Category' --report "$scratch/report"
  for kind in plain all; do
    for file in report.txt report.json report.html timeline.csv snapshot.pickle trace.json; do
      if [ ! -s "$scratch/report/$kind/$file" ]; then
        echo "--report wrote no $kind/$file"
        failures=$((failures + 1))
      fi
    done
  done
  # views that were written train like those that were drawn
  views=$scratch/views
  # shellcheck disable=SC2086
  "$program" $small --steps 3 --out "$scratch/drawn" --write-views "$views" >"$scratch/log" 2>&1
  if grep -q 'built without' "$scratch/log"; then
    echo "built without libpng or nlohmann-json: transforms.json is left out"
  else
    near_far='--near 1.63 --far 2.97'
    # shellcheck disable=SC2086
    expect 0 'all checks passed' --steps 3 --data "$views/transforms.json" $near_far \
      --out "$scratch/read"
    compare "$scratch/drawn" "$scratch/read"
    head -c 1000 "$views/transforms.json" >"$views/half.json"
    refuse 'half.json: is no JSON' --data "$views/half.json"
    sed 's/transform_matrix/matrix/' "$views/transforms.json" >"$views/keys.json"
    refuse "keys.json: is no transforms.json: .*transform_matrix" --data "$views/keys.json"
    sed 's/1\.0/2.0/' "$views/transforms.json" >"$views/scaled.json"
    refuse 'scaled.json: has a transform_matrix that no camera has' --data "$views/scaled.json"
    head -c 100 "$views/view_1.png" >"$views/half.png"
    sed 's/view_1"/half.png"/' "$views/transforms.json" >"$views/png.json"
    refuse "half.png: can't be read as PNG" --data "$views/png.json"
    sed 's/view_1"/view_9"/' "$views/transforms.json" >"$views/gone.json"
    refuse "view_9.png: can't be read as PNG" --data "$views/gone.json"
    cp "$chair/BlueWhite_Stripes.png" "$views/large.png"
    sed 's/view_1"/large.png"/' "$views/transforms.json" >"$views/sizes.json"
    refuse 'large.png: has another size' --data "$views/sizes.json"
    sed 's/"camera_angle_x": [0-9.]*/"camera_angle_x": 0/' "$views/transforms.json" \
      >"$views/angle.json"
    refuse 'angle.json: camera_angle_x has to be' --data "$views/angle.json"
    refuse 'junk.obj' --write-views "$scratch/junk.obj"
  fi
  ;;
resume)
  for how in '--checkpoint off' '--amp bf16 --chunk 12' '--amp fp16 --accumulate 2'; do
    # shellcheck disable=SC2086
    expect 0 'all checks passed' $how --steps 6 --out "$scratch/whole"
    # shellcheck disable=SC2086
    expect 0 'all checks passed' $how --steps 3 --save "$scratch/state.pt"
    # shellcheck disable=SC2086
    expect 0 'all checks passed' $how --steps 6 --resume "$scratch/state.pt" \
      --out "$scratch/resumed"
    compare "$scratch/whole" "$scratch/resumed"
  done
  expect 2 'this one has.*amp off' --accumulate 2 --steps 6 --resume "$scratch/state.pt"
  expect 0 'all checks passed' --steps 3 --checkpoint off --save "$scratch/state.pt"
  expect 0 'all checks passed' --steps 4 --checkpoint on --resume "$scratch/state.pt"
  expect 2 'at step 3 already' --steps 3 --resume "$scratch/state.pt"
  expect 2 'this one has .*width 9' --width 9 --steps 6 --resume "$scratch/state.pt"
  expect 2 'this one has views 3' --hold-out 4 --steps 6 --resume "$scratch/state.pt"
  ;;
techniques)
  # checkpointing and scaled losses change no picture, in any precision
  for amp in off bf16; do
    expect 0 'all checks passed' --steps 4 --amp $amp --checkpoint off --out "$scratch/plain"
    expect 0 'all checks passed' --steps 4 --amp $amp --scale-losses --out "$scratch/all"
    compare "$scratch/plain" "$scratch/all"
  done
  # a score that isn't reached, and a loss that isn't finite
  expect 1 'FAILED: at least 90 dB wanted' --least-psnr 90
  expect 1 'no longer finite at step [0-9]*; try' --amp fp16 --lr 10 --steps 100
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
