# program: perl
# version: perl -e 'print $^V'
# does: fork and pipes, a TCP server on loopback, file locks, in-place edits, temporary files
# kind: core
# makes: text.txt

before() { echo one two > text.txt; }

job() {
	perl -pi -e 's/two/three/' text.txt && cat text.txt
	cat > main.pl <<'END'
use strict; use warnings;
use Fcntl ':flock'; use File::Temp 'tempdir'; use IO::Socket::INET; use POSIX (); use Time::HiRes ();
pipe(my $r, my $w); my $pid = fork // die; if (!$pid) { print $w "from a child\n"; close $w; POSIX::_exit(4) }
close $w; print scalar <$r>; waitpid $pid, 0; print "exit ", $? >> 8, "\n";
my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die $!;
if (!fork) { my $c = IO::Socket::INET->new(PeerAddr => 'localhost', PeerPort => $s->sockport) or die $!; print $c "over loopback\n"; POSIX::_exit(0) }
my $c = $s->accept; print scalar <$c>; wait;
open my $l, '>', 'lock' or die $!; flock $l, LOCK_EX or die $!;
if (!fork) { open my $m, '>', 'lock'; print flock($m, LOCK_EX | LOCK_NB) ? "not locked\n" : "locked\n"; $| = 1; STDOUT->flush; POSIX::_exit(0) } wait;
my $d = tempdir(CLEANUP => 1); print -d $d ? "temporary\n" : ""; local $SIG{ALRM} = sub { print "alarm\n" }; Time::HiRes::ualarm(20_000); POSIX::pause();
END
	perl main.pl
	rm lock
}
