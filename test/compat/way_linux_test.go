package compat

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hutch/test/lab"
)

const userID = 1000 // the ordinary user, where root runs the tests

// A way is who runs hutch, and whose workspace it is.
type way struct {
	name  string
	hutch int // uid that runs hutch
	owner int // uid of the workspace, and so of the command
}

// The ways of this process: an ordinary user has one. Root has two, a workspace
// of his own and a user's; the table is made by root, who can be that user as
// well.
func ways() []way {
	if uid := os.Geteuid(); uid != 0 {
		return []way{{"user", uid, uid}}
	}
	all := []way{{"root", 0, 0}, {"owner", 0, userID}}
	if *update {
		all[1] = way{"user", userID, userID}
	}
	return slices.DeleteFunc(all, func(w way) bool { return *who != "" && w.name != *who })
}

func credential(uid int) *syscall.Credential {
	if uid == os.Geteuid() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}

// path is PATH less the directories that the way's users cannot search: root's
// own toolchains, for one.
func (w way) path() string {
	var kept []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		open := true
		for d := dir; d != "/" && d != "."; d = filepath.Dir(d) {
			st, err := os.Stat(d)
			open = open && err == nil && (w.owner == 0 || st.Mode().Perm()&0o001 != 0)
		}
		if open {
			kept = append(kept, dir)
		}
	}
	return strings.Join(kept, ":")
}

// world makes a world that belongs to a way's users, with build caches that
// all worlds of that way share.
func (w way) world(t *testing.T) *lab.World {
	t.Helper()
	world := lab.New(t)
	world.Credential = credential(w.hutch)
	cache := w.cache(t)
	world.Env = append(world.Env, "PATH="+w.path(), "GOCACHE="+cache, "GOPROXY=off", "GOTOOLCHAIN=local", "GOTELEMETRY=off", "GOFLAGS=-buildvcs=false")
	for _, dir := range filepath.SplitList(w.path()) {
		// A rustup on PATH finds its toolchains by HOME, which is another here.
		if home, ok := strings.CutSuffix(dir, "/.cargo/bin"); ok {
			world.Env = append(world.Env, "RUSTUP_HOME="+filepath.Join(home, ".rustup"))
		}
	}
	for dir, uid := range map[string]int{world.Base: w.owner, world.Dir: w.owner, world.Home: w.owner, world.Tmp: w.owner, world.State: w.hutch} {
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	return world
}

// caches is where the build caches of the ways lie; TestMain removes it.
var caches string

func (w way) cache(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("GOCACHE"); dir != "" && w.owner == os.Geteuid() {
		return dir
	}
	dir := filepath.Join(caches, strconv.Itoa(w.owner), "go-build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chown(d, w.owner, w.owner); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
