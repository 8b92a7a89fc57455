# program: bash
# version: bash --version | head -1
# does: job control, process substitution, here-documents, coprocesses, traps, named pipes, a pseudo-terminal of its own
# kind: core
# makes: out.txt

job() {
	set -m
	sleep 30 & local sleeper=$!
	kill -STOP $sleeper
	while [ "$(ps -o stat= -p $sleeper | cut -c1)" != T ]; do sleep 0.01; done
	jobs | grep -c Stopped
	kill $sleeper; kill -CONT $sleeper
	local status=147
	while [ $status = 147 ]; do status=0; wait $sleeper || status=$?; done # 147: still stopped
	echo "sleep ended with $status"
	(exit 7) & wait $! || echo "a job ended with $?"
	set +m
	diff <(printf 'a\nb\n') <(printf 'a\nc\n') || true
	cat > out.txt <<-END
		here is $((6 * 7))
	END
	coproc CAT { cat; }
	echo through the coprocess >&"${CAT[1]}"; read -r line <&"${CAT[0]}"; echo "$line"
	eval "exec ${CAT[1]}>&-"
	mkfifo pipe; (echo through the pipe > pipe) & cat pipe; rm pipe
	(trap 'echo trapped' USR1; kill -USR1 $BASHPID; :)
	echo /dev/fd works > /dev/fd/1; echo stderr works > /dev/stderr
	local -A map=([k]=v); echo "${map[k]} ${BASH_VERSINFO[0]}"
	(umask 077; : > private); stat -c %a private
	(ulimit -n 100; ulimit -n)
	script -qec 'stty rows 30 columns 90; stty size; tty | tr -d 0-9' /dev/null < /dev/null | tr -d '\r'
	mapfile -t lines < out.txt; echo "${lines[0]}"
	seq 100 | xargs -P 4 -n 10 echo | wc -l
	timeout 0.1 sleep 5 || echo "timed out with $?"
}
