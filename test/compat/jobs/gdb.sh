# program: gdb
# needs: gdb gcc
# version: gdb --version | head -1
# does: a breakpoint, run at fixed addresses, backtrace, a watchpoint and threads of its own child
# kind: core
# makes: app

job() {
	cat > a.c <<'END'
#include <pthread.h>
int total;
static int inner(int n) { total += n; return total; }
int outer(int n) { return inner(n + 1); }
static void *run(void *a) { outer(*(int *)a); return 0; }
int main(void) { int n = 41; pthread_t t; pthread_create(&t, 0, run, &n); pthread_join(t, 0); return total == 42 ? 5 : 1; }
END
	gcc -g -O0 -o app a.c -pthread
	gdb -q -nx -batch -ex 'break inner' -ex run -ex bt -ex 'print n' -ex 'print &total' -ex 'watch total' -ex continue -ex 'delete' -ex continue ./app < /dev/null > gdb.txt 2> err.txt || true
	grep -oE '0x[0-9a-f]+ <total>|in (inner|outer|run) \(|^#0 +inner|New value = [0-9]+|\$1 = [0-9]+|exited with code [0-9]+' gdb.txt | sed 's/  */ /g'
	rm gdb.txt err.txt
}
