#!/bin/sh
# What voxel_gan does with wrong command lines and files, and that a resumed training is the same.
#   voxel_gan_test.sh arguments|files|resume|techniques PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --batch 2 --channels 2 --latent 4 --classes bed --variants 1"
small="$small --min-coverage 0 --max-distance 100000 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

case $what in
arguments)
  expect 0 'default 16' --help
  for option in --steps --accumulate --channels --latent --variants --max-distance; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  for option in --lr --discriminator-lr --noise --ema --gradient-penalty; do
    expect 2 "$option is '0'; it must be a number above 0" "$option=0"
  done
  expect 2 'a number above 0, at most 1' --ema 1.5
  expect 2 'a whole number from 2 to' --batch 1
  expect 2 'it must be on or off' --checkpoint maybe
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'a whole number from 0 to 100' --min-coverage 101
  expect 2 "have a name that is empty or there twice" --classes bed,
  expect 2 "have a name that is empty or there twice" --classes bed,bed
  expect 2 '--classes is empty' --classes=
  expect 2 '--data is empty' --data=
  ;;
files)
  # a folder of one's own, with one file of each kind
  own=$scratch/own
  mkdir -p "$own/bed" "$scratch/empty" "$scratch/short/bed" "$scratch/flat/bed"
  cp "$data/furniture/bed/bed1.ply" "$own/bed/a.ply"
  printf 'v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\n' >"$own/bed/b.obj"
  printf 'OFF\n4 2 0\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n' >"$own/bed/c.off"
  cp "$own/bed/c.off" "$own/bed/d.off"
  expect 0 'all checks passed' --data "$own"
  # with something wrong: expect_broken FILE CONTENT PATTERN
  refuse_broken() {
    cp -r "$own" "$scratch/broken"
    printf "$2" >"$scratch/broken/$1"
    refuse "$3" --data "$scratch/broken"
    rm -r "$scratch/broken"
  }
  refuse_broken bed/a.ply '' 'a.ply: is no PLY file'
  refuse_broken bed/a.ply 'ply\nformat ascii 1.0\nelement vertex 9\nproperty float x\nend_header\n' 'a.ply: ends or breaks in vertex 0 of 9'
  refuse_broken bed/b.obj 'v 0 0\n' 'b.obj:1: expected 3 numbers'
  refuse_broken bed/b.obj 'v 0 0 0\nf 1 2 3\n' "b.obj:2: a face names vertex '2'"
  refuse_broken bed/c.off 'OFF\n1 1 0\n0 0 0\n3 0 0 1\n' 'c.off:4: a face names vertex 1 of 1'
  refuse_broken bed/c.off 'OFF\n3 1 0\n0 0 0\n' 'c.off:3: the file ends before vertex 1 of 3'
  refuse_broken bed/c.off 'OFF\n3 1 0\n0 0 0\n0 0 0\n0 0 0\n3 0 1 2\n' 'c.off: has no surface'
  refuse_broken objects.csv '' 'objects.csv: is empty'
  refuse_broken objects.csv 'file,split\n' "objects.csv:1: has no column 'class'"
  refuse_broken objects.csv 'file,class,split\nbed/a.ply,bed,both\n' "objects.csv:2: the split is 'both'"
  refuse_broken objects.csv 'file,class,split\nbed/z.ply,bed,test\n' 'z.ply: no such file'
  refuse 'missing: no such folder' --data "$scratch/missing"
  refuse 'README.md: no such folder' --data "$data/furniture/README.md"
  refuse 'empty: has no objects' --data "$scratch/empty"
  cp "$own/bed/b.obj" "$scratch/short/bed"
  refuse "has 1 objects to train with and 0 to test with" --data "$scratch/short"
  refuse "has no class 'spoon'; it has chair, sofa" --classes spoon
  echo junk >"$scratch/junk.pt"
  refuse 'no training state' --resume "$scratch/junk.pt"
  refuse 'missing.pt: no such file' --resume "$scratch/missing.pt"
  refuse "can't write" --save "$scratch/missing/state.pt"
  refuse 'junk.pt' --out "$scratch/junk.pt"
  refuse 'junk.pt' --report "$scratch/junk.pt"
  expect 0 '^Category' --report "$scratch/report"
  for kind in plain all; do
    for file in report.txt report.json report.html timeline.csv snapshot.pickle trace.json; do
      if [ ! -s "$scratch/report/$kind/$file" ]; then
        echo "--report wrote no $kind/$file"
        failures=$((failures + 1))
      fi
    done
  done
  ;;
resume)
  # shellcheck disable=SC2086
  for how in '--checkpoint off' '--amp bf16 --gradient-penalty 10' '--amp fp16 --accumulate 2'; do
    expect 0 'all checks passed' $how --steps 6 --out "$scratch/whole"
    expect 0 'all checks passed' $how --steps 3 --save "$scratch/state.pt"
    expect 0 'all checks passed' $how --steps 6 --resume "$scratch/state.pt" --out "$scratch/resumed"
    for picture in "$scratch"/whole/*; do
      cmp "$picture" "$scratch/resumed/${picture##*/}" || failures=$((failures + 1))
    done
  done
  expect 2 'this one has.*amp off' --steps 6 --resume "$scratch/state.pt"
  expect 0 'all checks passed' --steps 3 --checkpoint off --save "$scratch/state.pt"
  expect 0 'all checks passed' --steps 4 --checkpoint on --resume "$scratch/state.pt"
  expect 2 'at step 3 already' --steps 3 --resume "$scratch/state.pt"
  expect 2 'this one has.*channels 3' --channels 3 --steps 6 --resume "$scratch/state.pt"
  expect 2 'this one has classes sofa' --classes sofa --steps 6 --resume "$scratch/state.pt"
  ;;
techniques)
  # checkpointing and scaled losses change no picture, in any precision, with either loss
  # shellcheck disable=SC2086
  for how in '--amp off' '--amp bf16' '--gradient-penalty 10'; do
    expect 0 'all checks passed' $how --steps 4 --checkpoint off --out "$scratch/plain"
    expect 0 'all checks passed' $how --steps 4 --scale-losses --out "$scratch/all"
    for picture in "$scratch"/plain/*; do
      cmp "$picture" "$scratch/all/${picture##*/}" || failures=$((failures + 1))
    done
  done
  # in float16 the scaled gradients of the penalty overflow at first
  expect 0 'all checks passed' --steps 20 --amp fp16 --gradient-penalty 10
  # scores that aren't reached
  expect 1 'coverage of at least 1.000 and .*: FAILED' --min-coverage 100
  expect 1 'FAILED' --max-distance 1
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
