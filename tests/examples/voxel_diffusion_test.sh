#!/bin/sh
# What voxel_diffusion does with wrong command lines and files, and that a resumed training is the
# same.
#   voxel_diffusion_test.sh arguments|files|resume|techniques PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --batch 2 --channels 8 --classes bed --variants 1 --ddim-steps 3"
small="$small --min-coverage 0 --max-distance 1000 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

# same FOLDER FOLDER: pictures byte by byte, and there are some
same() {
  if [ ! -s "$1/loss.svg" ]; then
    echo "$1 has no loss.svg"
    failures=$((failures + 1))
  fi
  for picture in "$1"/*; do
    cmp "$picture" "$2/${picture##*/}" || failures=$((failures + 1))
  done
}

case $what in
arguments)
  expect 0 'default 1500' --help
  for option in --steps --batch --accumulate --variants --max-distance --ddim-steps --fold; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  for option in --lr --ema --shift; do
    expect 2 "$option is '0'; it must be a number above 0" "$option=0"
  done
  expect 2 'a number above 0, at most 1' --ema 1.5
  expect 2 'a whole number from 2 to' --noise-levels 1
  expect 2 'a whole number from 0 to 90' --dropout 91
  expect 2 'it must be 1, 2 or 4' --fold 3
  expect 2 'it must be a multiple of 8' --channels 12
  expect 2 'it must be on or off' --checkpoint maybe
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'a whole number from 0 to 100' --min-coverage 101
  expect 2 'have a name that is empty or there twice' --classes bed,
  expect 2 'have a name that is empty or there twice' --classes bed,bed
  expect 2 '--classes is empty' --classes=
  expect 2 '--data is empty' --data=
  ;;
files)
  # a folder of one's own, with a file of each kind
  own=$scratch/own
  mkdir -p "$own/bed" "$scratch/empty" "$scratch/short/bed"
  cp "$data/furniture/bed/bed1.ply" "$own/bed/a.ply"
  printf 'v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\n' >"$own/bed/b.obj"
  printf 'OFF\n4 2 0\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n' >"$own/bed/c.off"
  cp "$own/bed/c.off" "$own/bed/d.off"
  expect 0 'all checks passed' --data "$own"
  # refuse_broken FILE CONTENT PATTERN: the same folder with another content of a file
  refuse_broken() {
    cp -r "$own" "$scratch/broken"
    # shellcheck disable=SC2059
    printf "$2" >"$scratch/broken/$1"
    refuse "$3" --data "$scratch/broken"
    rm -r "$scratch/broken"
  }
  refuse_broken bed/a.ply '' 'a.ply: is no PLY file'
  refuse_broken bed/b.obj 'v 0 0\n' 'b.obj:1: expected 3 numbers'
  refuse_broken bed/c.off 'OFF\n1 1 0\n0 0 0\n3 0 0 1\n' 'c.off:4: a face names vertex 1 of 1'
  refuse_broken bed/c.off 'OFF\n3 1 0\n0 0 0\n' 'c.off:3: the file ends before vertex 1 of 3'
  refuse_broken bed/c.off 'OFF\n3 1 0\n0 0 0\n0 0 0\n0 0 0\n3 0 1 2\n' 'c.off: has no surface'
  refuse_broken objects.csv '' 'objects.csv: is empty'
  refuse_broken objects.csv 'file,split\n' "objects.csv:1: has no column 'class'"
  refuse_broken objects.csv 'file,class,split\nbed/z.ply,bed,test\n' 'z.ply: no such file'
  head -c 2000 "$data/furniture/bed/bed1.ply" >"$own/bed/a.ply"
  refuse 'a.ply: ends or breaks in ' --data "$own"
  refuse 'missing: no such folder' --data "$scratch/missing"
  refuse 'empty: has no objects' --data "$scratch/empty"
  cp "$own/bed/b.obj" "$scratch/short/bed"
  refuse 'has 1 objects to train with and 0 to test with' --data "$scratch/short"
  refuse "has no class 'spoon'" --classes spoon
  echo junk >"$scratch/junk.pt"
  refuse 'no training state' --resume "$scratch/junk.pt"
  refuse 'missing.pt: no such file' --resume "$scratch/missing.pt"
  refuse "can't write" --save "$scratch/missing/state.pt"
  refuse 'junk.pt' --out "$scratch/junk.pt"
  refuse 'junk.pt' --report "$scratch/junk.pt"
  expect 0 '^Category' --report "$scratch/report" --save "$scratch/state.pt"
  for kind in plain all; do
    for file in report.txt report.json report.html timeline.csv snapshot.pickle trace.json; do
      if [ ! -s "$scratch/report/$kind/$file" ]; then
        echo "--report wrote no $kind/$file"
        failures=$((failures + 1))
      fi
    done
  done
  head -c 20000 "$scratch/state.pt" >"$scratch/half.pt"
  refuse 'half.pt: is no training state' --resume "$scratch/half.pt" --steps 2
  ;;
resume)
  # shellcheck disable=SC2086
  for how in '--checkpoint off' '--triplane --amp bf16' '--triplane --amp fp16 --accumulate 2'; do
    expect 0 'all checks passed' $how --steps 6 --out "$scratch/whole"
    expect 0 'all checks passed' $how --steps 3 --save "$scratch/state.pt"
    expect 0 'all checks passed' $how --steps 6 --resume "$scratch/state.pt" --out "$scratch/resumed"
    same "$scratch/whole" "$scratch/resumed"
  done
  expect 2 'this one has.*amp off' --triplane --steps 6 --resume "$scratch/state.pt"
  planes='--triplane --accumulate 1'
  # shellcheck disable=SC2086
  {
    expect 0 'all checks passed' $planes --steps 3 --checkpoint off --save "$scratch/state.pt"
    expect 0 'all checks passed' $planes --steps 4 --checkpoint on --resume "$scratch/state.pt"
    expect 2 'at step 3 already' $planes --steps 3 --resume "$scratch/state.pt"
    expect 2 'this one has.*voxels' --steps 6 --resume "$scratch/state.pt"
    expect 2 'this one has.*channels 16' $planes --channels 16 --steps 6 --resume "$scratch/state.pt"
    expect 2 'this one has classes sofa' $planes --classes sofa --steps 6 --resume "$scratch/state.pt"
    expect 2 'this one has.*noise levels 10' $planes --noise-levels 10 --resume "$scratch/state.pt"
  }
  ;;
techniques)
  # checkpointing and scaled losses change no picture, in any precision
  # shellcheck disable=SC2086
  for how in '--amp off' '--triplane --amp off' '--triplane --amp bf16'; do
    expect 0 'all checks passed' $how --steps 4 --checkpoint off --out "$scratch/plain"
    expect 0 'all checks passed' $how --steps 4 --scale-losses --out "$scratch/all"
    same "$scratch/plain" "$scratch/all"
  done
  # scores that aren't reached, and a loss that isn't finite
  expect 1 'coverage of at least 1.000 and .*: FAILED' --triplane --min-coverage 100
  expect 1 'checks FAILED' --triplane --min-coverage 1 --max-distance 1
  expect 1 'no longer finite at step [0-9]*; try' --triplane --amp fp16 --lr 10 --steps 100
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
