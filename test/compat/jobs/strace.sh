# program: strace
# version: strace --version | head -1
# does: -f over a shell with children, -c, a filter by seccomp, and attaching to a process beside it
# kind: core
# makes: trace.txt
# differs: trace\.txt

job() {
	strace -f -o trace.txt -e trace=execve,openat sh -c 'cat /etc/hostname > /dev/null; true | cat'
	grep -c 'execve("/usr/bin/cat"\|execve("/bin/cat"' trace.txt
	strace -f --seccomp-bpf -e trace=getpid -o /dev/null true && echo with a filter
	strace -c -o count.txt true && grep -c execve count.txt; rm count.txt
	sleep 30 & local sleeper=$!
	strace -o attached.txt -p $sleeper & local tracer=$!
	for _ in $(seq 200); do [ -s attached.txt ] && break; sleep 0.02; done
	kill $sleeper; wait $sleeper $tracer || true
	grep -c SIGTERM attached.txt | sed 's/.*/attached/'; rm attached.txt
}
