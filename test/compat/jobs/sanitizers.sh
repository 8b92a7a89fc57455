# program: gcc sanitizers
# needs: gcc
# version: gcc --version | head -1
# does: AddressSanitizer finds an overflow, LeakSanitizer a leak (it traces its own process), ThreadSanitizer a race, UBSan an overflow
# kind: heavy
# makes: a.c
# varies: ^(address|leak|thread|undefined)$

job() {
	cat > a.c <<'END'
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int n;
static void *add(void *a) { for (int i = 0; i < 10000; i++) n++; return a; }
int main(int argc, char **argv) {
	char *p = malloc(10);
	if (!strcmp(argv[1], "overflow")) { p[argc + 8] = 1; free(p); }
	if (!strcmp(argv[1], "leak")) { p = malloc(argc + 20); p = 0; }
	if (!strcmp(argv[1], "race")) { pthread_t t, u; pthread_create(&t, 0, add, 0); pthread_create(&u, 0, add, 0); pthread_join(t, 0); pthread_join(u, 0); }
	if (!strcmp(argv[1], "signed")) { int x = INT_MAX; x += argc; printf("%d\n", x); };
	return 0;
}
END
	for s in address leak thread undefined; do gcc -g -w -fsanitize=$s -o $s a.c -pthread; done
	(./address overflow 2>&1 || true) | grep -o 'AddressSanitizer: heap-buffer-overflow' | head -1
	(./leak leak 2>&1 || true) | grep -o 'LeakSanitizer: detected memory leaks' | head -1
	(./thread race 2>&1 || true) | grep -o 'ThreadSanitizer: data race' | head -1
	(./undefined signed 2>&1 || true) | grep -o 'signed integer overflow' | head -1
}
