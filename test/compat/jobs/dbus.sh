# program: dbus-run-session
# needs: dbus-run-session dbus-send
# version: dbus-daemon --version | head -1
# does: a session bus of the box's own, a call on it
# kind: light
# makes: names.txt
# note: the host's buses are absent

job() {
	dbus-run-session -- dbus-send --session --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames > names.txt 2> /dev/null
	grep -o 'org.freedesktop.DBus' names.txt | sort -u; echo > names.txt
}
