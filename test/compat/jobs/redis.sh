# program: redis
# needs: redis-server redis-cli
# version: redis-server --version | cut -d' ' -f1-3
# does: a server on loopback and a unix socket, values, a background save by fork, shutdown
# kind: light
# makes: dump.rdb
# differs: dump\.rdb

job() {
	local dir; dir=$(mktemp -d)
	redis-server --port 8736 --bind 127.0.0.1 --unixsocket "$dir/s" --dir "$PWD" --save '' --daemonize no --loglevel warning --logfile '' > /dev/null & local server=$!
	for _ in $(seq 100); do redis-cli -s "$dir/s" ping > /dev/null 2>&1 && break; sleep 0.05; done
	redis-cli -p 8736 set k v; redis-cli -s "$dir/s" get k
	redis-cli -p 8736 bgsave > /dev/null
	for _ in $(seq 100); do [ -s dump.rdb ] && break; sleep 0.05; done
	redis-cli -p 8736 shutdown nosave; wait $server || true
	rm -r "$dir"; echo stopped
}
