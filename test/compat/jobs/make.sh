# program: make
# needs: make gcc
# version: make --version | head -1
# does: make -j4 with a job server over twelve objects, a second run with nothing to do, one file touched, a recursive make
# kind: core
# makes: app o/12.o

before() { mkdir src && for i in $(seq 12); do echo "int f$i(void) { return $i; }" > src/$i.c; done; }

job() {
	cat > Makefile <<'END'
OBJECTS := $(patsubst src/%.c,o/%.o,$(wildcard src/*.c))
app: $(OBJECTS) main.c
	@gcc -o $@ main.c $(sort $(OBJECTS))
o/%.o: src/%.c
	@mkdir -p o; echo $@ >> built.txt; gcc -c -o $@ $<
again:
	@+$(MAKE) -s app
END
	(for i in $(seq 12); do echo "int f$i(void);"; done; echo '#include <stdio.h>'; echo 'int main(void) { printf("%d\n", '; for i in $(seq 12); do printf 'f%d() + ' $i; done; echo '0); return 0; }') > main.c
	make -s -j4 app && ./app
	wc -l < built.txt
	make -q app && echo nothing to do
	sleep 0.02; touch src/3.c
	make -s -j4 again && wc -l < built.txt
	sort -o built.txt built.txt
}
