#!/bin/sh
# mpirun that saves the run when it is told to stop: sh mpirun.sh -n 4 gad train ...
#
# SIGTERM and Ctrl-C to mpirun itself leave the ranks two seconds. This script hands them on
# as SIGUSR1, which mpirun passes to the ranks at once: they save, and it ends with their
# status, 75.
setsid mpirun "$@" & # in a session of its own, where Ctrl-C does not reach it
ranks=$!
trap 'kill -USR1 $ranks' TERM INT HUP
while :; do
  wait $ranks
  status=$?
  kill -0 $ranks 2>/dev/null || exit $status # or else a signal has ended the wait
done
