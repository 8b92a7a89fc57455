# program: coreutils and util-linux
# needs: flock mkfifo locale setsid
# version: ls --version | head -1
# does: locks between processes, named pipes, sessions, niceness, locales, time zones, /dev/shm, hard and symbolic links, sparse files, extended attributes
# kind: light
# makes: log.txt hole

job() {
	(flock 9; sleep 0.2; echo first >> log.txt) 9> lock & sleep 0.05
	flock -n lock true || echo "busy with $?"
	flock lock sh -c 'echo second >> log.txt'; wait; cat log.txt
	mkfifo p; (cat p > from-pipe.txt) & echo through > p; wait; rm p; cat from-pipe.txt
	setsid -w sh -c 'echo a session of its own'
	nice -n 5 nice
	LC_ALL=C.UTF-8 locale charmap; printf 'é\nz\na\n' | LC_ALL=C.UTF-8 sort | tr '\n' ' '; echo
	TZ=Europe/Vienna date -d @0 '+%H:%M %Z'; TZ=America/New_York date -d @0 +%Z
	echo shared > /dev/shm/compat.$$; cat /dev/shm/compat.$$; rm /dev/shm/compat.$$
	truncate -s 1G hole; stat -c '%s %b' hole; cp --sparse=always hole hole2; stat -c %b hole2; rm hole2
	mkdir d; echo x > d/f; ln d/f hard; ln -s d/f soft; cp -a --reflink=auto d e; mv d moved; mv e d; cat hard moved/f d/f
	stdbuf -oL echo unbuffered; nohup echo no hangup 2> /dev/null; (echo a; sleep 0.1; echo b) | timeout 5 tail -n 1
	id -un > /dev/null && whoami > /dev/null && echo I have a name
	test "$(hostname)" = "$(uname -n)" && getent hosts "$(hostname)" > /dev/null && echo my name is known
	hostname -f > /dev/null && echo so is the full one
	getent hosts localhost | grep -cE '^(127.0.0.1|::1)'
	test -w "$HOME" && test -w "${TMPDIR:-/tmp}" && test -w /var/tmp && echo home and temporary directories can be written
}
