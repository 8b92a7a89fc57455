# program: ps, top, ss, ip, lsof
# needs: ps top ss ip lsof free
# version: ps --version
# does: the box's own processes, sockets, addresses and open files
# kind: light
# makes: done.txt

job() {
	sleep 30 & local sleeper=$!
	ps -o comm= -p $sleeper; ps aux | grep -c '[s]leep 30' | sed 's/[1-9][0-9]*/seen/'; pgrep -x sleep -P $$ | wc -l
	top -b -n 1 | grep -c 'load average'
	free | grep -c Mem; nproc | grep -c . ; uptime | grep -c load; df -P . | wc -l
	python3 -c 'import socket, time; s = socket.create_server(("127.0.0.1", 8733)); open("up", "w").close(); time.sleep(30)' & local server=$!
	while [ ! -e up ]; do sleep 0.02; done; rm up
	ss -ltn | grep -c ':8733'
	ip -o addr show lo | grep -c '127.0.0.1/8'
	lsof -p $server 2> /dev/null | grep -c ':8733'
	cat /proc/$sleeper/maps /proc/$sleeper/limits /proc/$sleeper/status > /dev/null && ls -l /proc/$sleeper/fd /proc/$sleeper/cwd > /dev/null && echo /proc is whole
	cat /proc/meminfo /proc/cpuinfo /proc/stat /proc/loadavg /proc/version /proc/filesystems /proc/mounts /proc/net/tcp /proc/sys/kernel/osrelease /proc/sys/vm/overcommit_memory /sys/devices/system/cpu/online > done.txt && echo so are the rest
	echo > done.txt
	kill $sleeper $server; wait || true
}
