# program: watch
# needs: watch script
# version: watch --version
# does: watch -g on a terminal of its own until the output changes
# kind: light
# makes: n

job() {
	echo 1 > n
	(while [ ! -e over ]; do sleep 0.1; date +%N > n; done) &
	TERM=xterm timeout 20 script -qec 'watch -n 0.1 -g cat n' /dev/null < /dev/null > /dev/null
	echo "ended with $?"; touch over; wait; rm over; echo 2 > n
}
