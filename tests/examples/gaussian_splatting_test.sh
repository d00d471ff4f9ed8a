#!/bin/sh
# What gaussian_splatting does with wrong command lines and files, and that a resumed training is the
# same, also after densification.
#   gaussian_splatting_test.sh arguments|files|resume|techniques PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --views 4 --hold-out 2 --size 12 --gaussians 40 --most-gaussians 80 \
--densify-every 2 --densify-until 8 --densify-gradient 1e-5 --least-psnr 0 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

# compare FOLDER FOLDER: the same Gaussians and pictures
compare() {
  for file in "$1"/*; do
    cmp "$file" "$2/${file##*/}" || failures=$((failures + 1))
  done
}

chair=$data/scenes/deckchair

case $what in
arguments)
  expect 0 'default 400' --help
  for option in --steps --batch --accumulate --tile --densify-every; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  for option in --views --hold-out; do
    expect 2 "$option is '1'; it must be a whole number from 2" "$option=1"
  done
  expect 2 'a whole number from 8' --gaussians 7
  expect 2 'most-gaussians is 30, less than the 40 of --gaussians' --most-gaussians 30
  expect 2 'it must be a number above 0' --lr 0
  expect 2 'it must be a number above 0' --densify-gradient 0
  expect 2 'it must be a number above 0' --radius -1
  expect 2 'it must be on or off' --checkpoint maybe
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'a whole number from 0 to 100' --least-psnr 101
  expect 2 '--data is empty' --data=
  ;;
files)
  expect 0 'all checks passed' --data "$chair/model.obj"
  if [ "$(grep -ac 'element vertex\|property float\|end_header' "$scratch/out/gaussians.ply")" -lt 28 ]; then
    echo "gaussians.ply lacks properties"
    failures=$((failures + 1))
  fi
  echo junk >"$scratch/junk.json"
  echo junk >"$scratch/junk.obj"
  echo junk >"$scratch/junk.ply"
  refuse 'missing.json: no such file\|without nlohmann-json' --data "$scratch/missing.json"
  refuse 'missing.obj: no such file' --data "$scratch/missing.obj"
  refuse 'missing.ply: no such file' --data "$scratch/missing.ply"
  refuse 'junk.json: is no JSON\|without nlohmann-json' --data "$scratch/junk.json"
  refuse 'junk.obj: has no triangles' --data "$scratch/junk.obj"
  refuse 'junk.ply: is no PLY file' --data "$scratch/junk.ply"
  refuse 'gaussians.ply: has no triangles' --data "$scratch/out/gaussians.ply"
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
    expect 0 'all checks passed' --steps 3 --data "$views/transforms.json" --radius 0.67 \
      --out "$scratch/read"
    compare "$scratch/drawn" "$scratch/read"
    head -c 1000 "$views/transforms.json" >"$views/half.json"
    refuse 'half.json: is no JSON' --data "$views/half.json"
    sed 's/transform_matrix/matrix/' "$views/transforms.json" >"$views/keys.json"
    refuse 'keys.json: is no transforms.json: .*transform_matrix' --data "$views/keys.json"
    head -c 100 "$views/view_1.png" >"$views/half.png"
    sed 's/view_1"/half.png"/' "$views/transforms.json" >"$views/png.json"
    refuse "half.png: can't be read as PNG" --data "$views/png.json"
    sed 's/view_1"/view_9"/' "$views/transforms.json" >"$views/gone.json"
    refuse "view_9.png: can't be read as PNG" --data "$views/gone.json"
    cp "$chair/BlueWhite_Stripes.png" "$views/large.png"
    sed 's/view_1"/large.png"/' "$views/transforms.json" >"$views/sizes.json"
    refuse 'large.png: has another size' --data "$views/sizes.json"
    refuse 'junk.obj' --write-views "$scratch/junk.obj"
  fi
  ;;
resume)
  # saved between two densifications, with gradients noted for the second
  for how in '--checkpoint off' '--amp bf16 --batch 2' '--amp fp16 --accumulate 2'; do
    # shellcheck disable=SC2086
    expect 0 'all checks passed' $how --steps 8 --out "$scratch/whole"
    # shellcheck disable=SC2086
    expect 0 'all checks passed' $how --steps 5 --save "$scratch/state.pt" --out "$scratch/part"
    # shellcheck disable=SC2086
    expect 0 'resumed *after step 5' $how --steps 8 --resume "$scratch/state.pt" \
      --out "$scratch/resumed"
    compare "$scratch/whole" "$scratch/resumed"
    for run in part whole; do
      if grep -aq 'element vertex 40$' "$scratch/$run/gaussians.ply"; then
        echo "no densification: the $run run has as many Gaussians as in the beginning"
        failures=$((failures + 1))
      fi
    done
  done
  expect 2 'this one has.*amp off' --accumulate 2 --steps 8 --resume "$scratch/state.pt"
  expect 0 'all checks passed' --steps 3 --checkpoint off --save "$scratch/state.pt"
  expect 0 'all checks passed' --steps 4 --checkpoint on --resume "$scratch/state.pt"
  expect 2 'at step 3 already' --steps 3 --resume "$scratch/state.pt"
  expect 2 'this one has gaussians 41' --gaussians 41 --steps 8 --resume "$scratch/state.pt"
  expect 2 'this one has.*views 3' --hold-out 4 --steps 8 --resume "$scratch/state.pt"
  ;;
techniques)
  # checkpointing and scaled losses change no Gaussian and no picture, in any precision
  for amp in off bf16; do
    expect 0 'all checks passed' --steps 4 --amp $amp --checkpoint off --out "$scratch/plain"
    expect 0 'all checks passed' --steps 4 --amp $amp --scale-losses --out "$scratch/all"
    compare "$scratch/plain" "$scratch/all"
  done
  # a score that isn't reached, and nothing left
  expect 1 'FAILED: at least 90 dB wanted' --least-psnr 90
  expect 1 'all Gaussians were removed at step [0-9]*; try' --lr 100 --densify-until 60 --steps 60
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
