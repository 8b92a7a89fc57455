# program: gcc
# version: gcc --version | head -1
# does: objects, a static and a shared library, threads, POSIX semaphores and message queues, System V shared memory, fork and exec
# kind: core
# makes: app libd.so libs.a

job() {
	echo 'int twice(int n) { return 2 * n; }' > s.c
	echo 'int thrice(int n) { return 3 * n; }' > d.c
	cat > main.c <<'END'
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
int twice(int), thrice(int);
static int n;
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void *add(void *a) { for (int i = 0; i < 1000; i++) { pthread_mutex_lock(&m); n++; pthread_mutex_unlock(&m); } return a; }
#define MUST(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)
int main(void) {
	pthread_t t[4];
	for (int i = 0; i < 4; i++) MUST(!pthread_create(&t[i], 0, add, 0));
	for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
	printf("threads %d, libraries %d %d\n", n, twice(21), thrice(14));
	char name[32];
	snprintf(name, sizeof name, "/compat-%d", getpid());
	sem_t *s = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
	MUST(s != SEM_FAILED);
	int shm = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	MUST(shm >= 0);
	char *seg = shmat(shm, 0, 0);
	MUST(seg != (void *)-1);
	mqd_t q = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, 0);
	MUST(q != (mqd_t)-1);
	if (!fork()) { strcpy(seg, "shared"); mq_send(q, "queued", 7, 0); sem_post(s); _exit(0); }
	char buf[9000];
	sem_wait(s);
	MUST(mq_receive(q, buf, sizeof buf, 0) == 7);
	printf("%s %s\n", seg, buf);
	wait(0); sem_unlink(name); mq_unlink(name); shmctl(shm, IPC_RMID, 0);
	int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
	MUST(fd >= 0 && !ftruncate(fd, 4096) && !shm_unlink(name));
	int sem = semget(IPC_PRIVATE, 1, 0600);
	MUST(sem >= 0 && !semctl(sem, 0, IPC_RMID));
	fflush(stdout);
	execlp("echo", "echo", "executed", (char *)0);
	return 1;
}
END
	gcc -O2 -Wall -c s.c && ar rcD libs.a s.o
	gcc -O2 -shared -fPIC -o libd.so d.c
	gcc -O2 -Wall -o app main.c libs.a -L. -ld -lrt -pthread -Wl,-rpath,.
	./app
}
