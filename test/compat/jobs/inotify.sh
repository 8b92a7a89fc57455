# program: inotifywait
# version: inotifywait --help | head -1
# does: events of files made, written and moved in the workspace
# kind: light
# makes: d/b

job() {
	mkdir d
	inotifywait -q -m -e create,close_write,moved_to --format '%e %f' d > events.txt 2> err.txt & local watcher=$!
	while ! grep -q inotify /proc/$watcher/fdinfo/* 2> /dev/null; do sleep 0.02; done
	echo x > d/a; mv d/a d/b
	for _ in $(seq 100); do grep -q MOVED_TO events.txt && break; sleep 0.02; done
	kill $watcher; wait $watcher || true
	cat events.txt; rm err.txt
}
