# program: delve
# needs: dlv go
# version: dlv version | grep ^Version
# does: a breakpoint in a program that it compiled, a backtrace, a variable, continue to the end
# kind: long
# makes: main.go

job() {
	go mod init example 2> /dev/null
	printf 'package main\n\nfunc double(n int) int {\n\treturn 2 * n\n}\n\nfunc main() { println(double(21)) }\n' > main.go
	printf 'break main.double\ncontinue\nprint n\nstack 2\ncontinue\nexit\n' > script
	go build -gcflags='all=-N -l' -o app .
	dlv exec --allow-non-terminal-interactive --check-go-version=false --init script ./app < /dev/null > out.txt 2>&1 || true
	grep -oE 'Breakpoint 1 set|^21$|in main\.(double|main)|has exited with status [0-9]+' out.txt; rm out.txt app
}
