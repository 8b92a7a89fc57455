# program: postgres
# needs: initdb postgres pg_ctl psql
# version: postgres --version
# does: initdb, start, a table over a unix socket and over loopback, stop
# kind: heavy
# makes: sum.txt
# varies: ^data
# note: refuses uid 0 by itself, in a box or not

job() {
	if [ "$(id -u)" = 0 ]; then (initdb -D data 2>&1 || true) | grep -o 'cannot be run as root' | tee sum.txt; return; fi
	local dir; dir=$(mktemp -d)
	initdb -D "$dir/data" -U me --auth=trust --no-sync > /dev/null
	pg_ctl -D "$dir/data" -s -w -l "$dir/log" -o "-p 8735 -k $dir -c fsync=off -c listen_addresses=127.0.0.1" start
	psql -h "$dir" -p 8735 -U me -q -d postgres -c 'create table t as select generate_series(1, 1000) n'
	psql -h 127.0.0.1 -p 8735 -U me -d postgres -Atc 'select sum(n) from t' | tee sum.txt
	pg_ctl -D "$dir/data" -s -m fast stop
	rm -r "$dir"
}
