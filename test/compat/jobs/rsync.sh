# program: rsync
# version: rsync --version | head -1 | cut -d' ' -f1-4
# does: -aHAX of a tree with links, holes and times, a second run with nothing to do, --delete, through a remote shell
# kind: core
# makes: to/a/file to/hard
# note: rsync --daemon as root fails to change to its user: root in a box has no capability

before() {
	mkdir -p from/a && echo x > from/a/file && ln from/a/file from/hard && ln -s a/file from/soft
	truncate -s 8M from/hole && chmod 640 from/a/file && touch -d 2020-01-01 from/a/file && chmod 700 from/a
}

job() {
	rsync -aHAXS from/ to/
	test from/a/file -ef to/a/file || test "$(stat -c '%a %Y %h' to/a/file)" = "$(stat -c '%a %Y %h' from/a/file)"
	test "$(stat -c %b to/hole)" = 0 && echo sparse
	rsync -aHAX --itemize-changes from/ to/ | wc -l
	rm from/soft && rsync -a --delete --itemize-changes from/ to/ | grep deleting
	printf '#!/bin/sh\nshift; exec "$@"\n' > shell && chmod 755 shell && rsync -a -e ./shell from/ host:over/
	ls over
}
