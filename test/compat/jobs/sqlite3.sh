# program: sqlite3
# version: sqlite3 --version | cut -d' ' -f1
# does: a database of the workspace changed in WAL mode, four writers at once, a lock that is busy, a backup
# kind: core
# makes: app.db copy.db
# differs: \.db$
# varies: \.db-(wal|shm)$

before() { sqlite3 app.db "pragma journal_mode=wal; create table t(n); insert into t values(1);" > /dev/null; }

job() {
	local writers=()
	for w in 1 2 3 4; do
		(for i in 1 2 3 4 5; do sqlite3 -cmd '.timeout 20000' app.db "insert into t values($i);"; done) & writers+=($!)
	done
	for w in "${writers[@]}"; do wait $w; done
	sqlite3 app.db 'select count(*), sum(n) from t;'
	coproc HOLD { sqlite3 -bail app.db 2>&1; }
	local holder=$HOLD_PID
	echo "begin immediate; select 'held';" >&"${HOLD[1]}"; read -r line <&"${HOLD[0]}"; echo "$line"
	(sqlite3 app.db 'insert into t values(9);' 2>&1 || true) | grep -o 'database is locked'
	eval "exec ${HOLD[1]}>&-"; wait $holder || true
	sqlite3 app.db '.backup copy.db' 'pragma integrity_check;' 'pragma wal_checkpoint(truncate);'
	sqlite3 copy.db 'select count(*) from t;'
}
