package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/daemon"
	"hutch/internal/fsat"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/workspace"
)

// version is set by the linker.
var version = "0.1.0-dev"

// flags are what the command line, or a variable HUTCHD_NAME, decides.
type flags struct {
	socket, tokenFile, log string
	listen                 []string
	idle, drain            time.Duration
	maxBoxes, maxRunning   int
	queue, pool, readyFD   int
	maxMemory, boxMemory   string
	debug                  bool
}

func main() {
	fsat.Searcher()
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "hutchd: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(outcome.ExitHutch)
	}
}

func parse(args []string) (*flags, error) {
	f := &flags{}
	set := pflag.NewFlagSet("hutchd", pflag.ContinueOnError)
	set.SortFlags = false
	set.StringVar(&f.socket, "socket", "", "path of the unix socket (default $HUTCH_SOCKET, else $XDG_RUNTIME_DIR/hutch/hutchd.sock, else hutchd.sock in the state directory)")
	set.StringSliceVar(&f.listen, "listen", nil, "HOST:PORT to listen at too; clients must know the token, and nothing is encrypted")
	set.StringVar(&f.tokenFile, "token-file", "", "file with the token of clients over TCP, which only you can read (or HUTCHD_TOKEN)")
	set.DurationVar(&f.idle, "idle", 10*time.Minute, "end after this time without connections and with nothing running; 0 is never")
	set.DurationVar(&f.drain, "drain", 10*time.Second, "how long commands may run on when the daemon is told to end")
	set.IntVar(&f.maxBoxes, "max-boxes", 1024, "live boxes; 0 is no limit")
	set.StringVar(&f.maxMemory, "max-memory", "0", "memory that is promised to live boxes together, such as 16G or 75%; 0 is no limit")
	set.StringVar(&f.boxMemory, "box-memory", "256M", "what a box without a limit of its own counts for in --max-memory")
	set.IntVar(&f.maxRunning, "max-running", 1024, "commands that run at once; 0 is no limit")
	set.IntVar(&f.queue, "queue", 256, "commands of one client that may wait for their turn")
	set.IntVar(&f.pool, "pool", 4, "jails that are made ahead of need; 0 is none")
	set.StringVar(&f.log, "log", "", "file for the log, in lines of JSON; - is standard error (default hutchd.log in the state directory)")
	set.BoolVar(&f.debug, "debug", false, "log more")
	set.IntVar(&f.readyFD, "ready-fd", -1, "descriptor to write a line to, and close, when the daemon serves")
	showVersion := set.Bool("version", false, "print the version")
	set.Usage = func() {
		fmt.Fprintf(os.Stdout, "Usage: hutchd [flags]\n\nServe boxes that live. Each flag can be given as a variable, --max-boxes as HUTCHD_MAX_BOXES.\n\n%s", set.FlagUsages())
	}
	if err := set.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w; see hutchd --help", err)
	}
	if *showVersion {
		fmt.Println("hutchd version " + version)
		return nil, pflag.ErrHelp
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("%q: hutchd takes flags only; see hutchd --help", set.Arg(0))
	}
	var wrong error
	set.VisitAll(func(flag *pflag.Flag) {
		name := "HUTCHD_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		if value := os.Getenv(name); value != "" && !flag.Changed && wrong == nil {
			if err := set.Set(flag.Name, value); err != nil {
				wrong = fmt.Errorf("%s: %w", name, err)
			}
		}
	})
	if wrong != nil {
		return nil, wrong
	}
	for name, n := range map[string]int{"max-boxes": f.maxBoxes, "max-running": f.maxRunning, "pool": f.pool, "queue": f.queue - 1} {
		if n < 0 {
			return nil, fmt.Errorf("--%s is too small", name)
		}
	}
	if f.idle < 0 || f.drain < 0 {
		return nil, errors.New("--idle and --drain cannot be negative")
	}
	return f, nil
}

// bytesOf reads a size; a share is one of the host's memory.
func bytesOf(flag, value string) (int64, error) {
	var s policy.Size
	if err := s.UnmarshalText([]byte(value)); err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	if s >= 0 {
		return int64(s), nil
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("--%s: the host's memory: %w", flag, err)
	}
	return int64(info.Totalram) * int64(info.Unit) / 100 * int64(-s), nil // a share is negative
}

func run(args []string) error {
	f, err := parse(args)
	if err != nil {
		return err
	}
	// What daemons make is for their user alone, unless a box's umask says more.
	unix.Umask(unix.Umask(0o777) &^ 0o700)
	// Before the first child is there that could inherit them.
	if f.readyFD >= 0 {
		unix.CloseOnExec(f.readyFD)
	}
	handed, err := daemon.Handed()
	if err != nil {
		return err
	}
	maxMemory, err := bytesOf("max-memory", f.maxMemory)
	if err != nil {
		return err
	}
	boxMemory, err := bytesOf("box-memory", f.boxMemory)
	if err != nil {
		return err
	}
	state, err := workspace.StateDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("state directory: %w; free space there, or set XDG_STATE_HOME to a directory you can write", err)
	}
	if f.socket == "" {
		if f.socket, err = workspace.Socket(); err != nil {
			return err
		}
	}
	token, err := f.token()
	if err != nil {
		return err
	}
	daemon.GrowTable()
	lock, err := daemon.TakeLock(state, f.socket)
	if err != nil {
		return err
	}
	defer lock.Release()
	if f.log == "" {
		f.log = filepath.Join(state, "hutchd.log")
	}
	level := slog.LevelInfo
	if f.debug {
		level = slog.LevelDebug
	}
	log, err := daemon.OpenLog(f.log, level)
	if err != nil {
		return err
	}
	boxes, err := box.OpenBoxes(box.Options{Pool: f.pool})
	if err != nil {
		return err
	}
	listeners, err := f.listeners(handed, token)
	if err != nil {
		return errors.Join(err, boxes.Close(context.Background()))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGHUP) // the terminal of whoever started it is not ours
	ctx, end := context.WithCancel(ctx)
	defer end()
	o := daemon.Options{
		Version: version, StateDir: state, MaxBoxes: f.maxBoxes, MaxMemory: maxMemory, BoxMemory: boxMemory,
		MaxRunning: f.maxRunning, Queue: f.queue, Idle: f.idle, Token: token, Log: log, End: end,
	}
	var list []net.Listener
	for _, l := range listeners {
		o.Listen = append(o.Listen, l.Name)
		list = append(list, l)
		if l.Host != "" {
			o.Hosts = append(o.Hosts, l.Host)
		}
	}
	server := daemon.New(living{boxes}, o)
	f.ready()
	daemon.Notify("READY=1")
	err = server.Serve(ctx, list, daemon.Times{Idle: f.idle, Drain: f.drain})
	daemon.Notify("STOPPING=1")
	return err
}

// token is what clients over TCP must know, nil when none is given.
func (f *flags) token() ([]byte, error) {
	if f.tokenFile != "" {
		return daemon.ReadToken(f.tokenFile)
	}
	text := os.Getenv("HUTCHD_TOKEN")
	os.Unsetenv("HUTCHD_TOKEN") // not for our children
	if text == "" {
		return nil, nil
	}
	return daemon.CheckToken([]byte(text))
}

func (f *flags) listeners(handed []*daemon.Listener, token []byte) (list []*daemon.Listener, err error) {
	list = handed
	defer func() {
		if err != nil {
			for _, l := range list {
				l.Close()
			}
		}
	}()
	if len(list) == 0 {
		l, err := daemon.ListenUnix(f.socket)
		if err != nil {
			return list, err
		}
		list = append(list, l)
	}
	for _, address := range f.listen {
		if len(token) == 0 {
			break
		}
		l, err := daemon.ListenTCP(address)
		if err != nil {
			return list, err
		}
		list = append(list, l)
	}
	for _, l := range list {
		if len(token) == 0 && (l.TCP() || len(f.listen) > 0) {
			return list, errors.New("over TCP a token is needed: give --token-file or HUTCHD_TOKEN")
		}
	}
	return list, nil
}

// ready tells whoever started the daemon that it serves.
func (f *flags) ready() {
	if f.readyFD < 0 {
		return
	}
	w := os.NewFile(uintptr(f.readyFD), "ready")
	if w == nil {
		return
	}
	_, _ = fmt.Fprintf(w, "%d\n", os.Getpid()) // whoever wanted to know may have gone
	w.Close()
}

// living is what the server asks, of boxes that are there in earnest.
type living struct{ *box.Boxes }

// Exec starts a command.
func (l living) Exec(ctx context.Context, id string, r api.Run, s daemon.Streams) (daemon.Started, error) {
	started, err := l.Boxes.Exec(ctx, id, r, box.Streams(s))
	if err != nil {
		return nil, err
	}
	return started, nil
}
