# program: valgrind
# needs: valgrind gcc
# version: valgrind --version
# does: memcheck finds a leak, callgrind counts
# kind: heavy
# makes: a.c
# varies: callgrind\.out

job() {
	printf '#include <stdlib.h>\nint main(void) { char *p = malloc(33); p[0] = 1; p = 0; return 0; }\n' > a.c
	gcc -g -O0 -o app a.c
	valgrind -q --leak-check=full --error-exitcode=7 ./app 2> v.txt || echo "exit $?"
	grep -o '33 bytes in 1 blocks are definitely lost' v.txt; rm v.txt
	valgrind -q --tool=callgrind --callgrind-out-file=callgrind.out ./app && grep -c ^totals callgrind.out
}
