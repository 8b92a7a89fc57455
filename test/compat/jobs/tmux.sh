# program: tmux
# version: tmux -V
# does: new-session -d, send-keys, capture-pane, split-window, kill-server
# kind: core
# makes: typed.txt

job() {
	export TERM=xterm
	tmux -f /dev/null new-session -d -s s -x 80 -y 24 'PS1="> " sh'
	for _ in $(seq 100); do tmux capture-pane -p -t s | grep -q '^>' && break; sleep 0.05; done
	tmux send-keys -t s 'echo typed | tee typed.txt; stty size' Enter
	for _ in $(seq 100); do tmux capture-pane -p -t s | grep -q '24 80' && break; sleep 0.05; done
	tmux capture-pane -p -t s | grep -E '^(typed|24 80)$'
	tmux split-window -t s 'sleep 30'
	tmux list-panes -t s | wc -l
	tmux kill-server
}
