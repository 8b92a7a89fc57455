package view

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ID is a user and a group of the host.
type ID struct{ UID, GID uint32 }

// A User is whom a command runs as.
type User struct {
	UID, GID uint32   // on the host; what it creates belongs to them
	Groups   []uint32 // supplementary groups on the host, without GID, sorted
	Root     bool     // it sees itself as uid 0
	Name     string
	Home     string // absolute and not "/", whether it exists or not
}

// Target decides whom a command runs as: the invoking user; but for root, the
// workspace's owner, since root would leave files behind that the owner cannot
// touch. The flag asks for another: a name, a uid, or a uid:gid. Root may ask
// for anyone; an ordinary user for itself, and for "root", which is then its
// own uid, seen as 0 from inside.
func Target(owner, invoking ID, flag string) (User, error) {
	return accounts{etc: "/etc"}.target(owner, invoking, flag)
}

// accounts reads /etc/passwd and /etc/group. os/user would do, at the price of
// what it drags into the start of a program that lives for a millisecond.
type accounts struct{ etc string }

func (a accounts) target(owner, invoking ID, flag string) (User, error) {
	isRoot := invoking.UID == 0
	switch {
	case flag == "" && isRoot && owner.UID != 0:
		return a.user(owner, false)
	case flag == "":
		return a.user(invoking, isRoot)
	case flag == "root" || flag == "0":
		return a.user(invoking, true)
	}

	id, err := a.parse(flag)
	if err != nil {
		return User{}, err
	}
	if !isRoot && id.UID != invoking.UID {
		return User{}, fmt.Errorf("--user %s: only root may run a command as another user", flag)
	}
	if !isRoot {
		id = invoking // a group of one's choice would be a right gained
	}
	return a.user(id, id.UID == 0)
}

// parse reads a --user flag: a name, a uid, or a uid:gid.
func (a accounts) parse(flag string) (ID, error) {
	user, group, hasGroup := strings.Cut(flag, ":")
	e, known, err := a.lookup(func(e entry) bool { return e.name == user })
	if err != nil {
		return ID{}, err
	}
	id := e.ID
	if !known {
		uid, err := parseID(user)
		if err != nil {
			return ID{}, fmt.Errorf("--user %s: no such user", flag)
		}
		if e, known, err = a.lookup(func(e entry) bool { return e.UID == uid }); err != nil {
			return ID{}, err
		}
		// A uid without an account has no group of its own; its number is the
		// usual choice, and never that of an existing privileged group.
		id = ID{uid, uid}
		if known {
			id = e.ID
		}
	}
	if hasGroup {
		if id.GID, err = parseID(group); err != nil {
			return ID{}, fmt.Errorf("--user %s: %q is not a gid", flag, group)
		}
	}
	return id, nil
}

// user fills in what is known of an id.
func (a accounts) user(id ID, root bool) (User, error) {
	e, known, err := a.lookup(func(e entry) bool { return e.UID == id.UID })
	if err != nil {
		return User{}, err
	}
	number := strconv.FormatUint(uint64(id.UID), 10)
	u := User{UID: id.UID, GID: id.GID, Root: root, Name: e.name, Home: filepath.Clean(e.home)}
	if !known {
		u.Name = number
	}
	// The home of a box is made for it, so any path will do but the root.
	if !filepath.IsAbs(u.Home) || u.Home == "/" {
		u.Home = "/home/" + number
	}
	if known {
		if u.Groups, err = a.groups(u.Name, id.GID, e.GID); err != nil {
			return User{}, err
		}
	}
	return u, nil
}

// entry is a line of /etc/passwd.
type entry struct {
	ID
	name, home string
}

// lookup finds the first account that matches. No file is no accounts.
func (a accounts) lookup(match func(entry) bool) (found entry, ok bool, err error) {
	err = a.lines("passwd", 7, func(f []string) bool {
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 != nil || err2 != nil {
			return true
		}
		e := entry{ID{uid, gid}, f[0], f[5]}
		if match(e) {
			found, ok = e, true
		}
		return !ok
	})
	return found, ok, err
}

// groups returns the groups a user is in beside gid. Its primary group is one
// of them when another was asked for.
func (a accounts) groups(name string, gid, primary uint32) ([]uint32, error) {
	var gids []uint32
	if primary != gid {
		gids = append(gids, primary)
	}
	err := a.lines("group", 4, func(f []string) bool {
		g, err := parseID(f[2])
		if err == nil && g != gid && slices.Contains(strings.Split(f[3], ","), name) {
			gids = append(gids, g)
		}
		return true
	})
	slices.Sort(gids)
	return slices.Compact(gids), err
}

// lines calls each with the fields of every line of a file that has as many,
// until it returns false. Lines that say "ask NIS" have a sign for a name.
func (a accounts) lines(file string, fields int, each func([]string) bool) error {
	f, err := os.Open(filepath.Join(a.etc, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20) // a group may have thousands of members
	for s.Scan() {
		line := strings.Split(s.Text(), ":")
		if len(line) != fields || line[0] == "" || strings.ContainsAny(line[0][:1], "+-#") {
			continue
		}
		if !each(line) {
			return nil
		}
	}
	return s.Err()
}

// parseID reads a uid or gid. The highest number means "none" to the kernel.
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange
	}
	return uint32(n), err
}

// MayRead reports whether the mode of a file lets the user read it; what no
// capability overrules, since a box has none.
func (u User) MayRead(uid, gid, mode uint32) bool {
	switch {
	case uid == u.UID:
		return mode&0o400 != 0
	case gid == u.GID || slices.Contains(u.Groups, gid):
		return mode&0o040 != 0
	}
	return mode&0o004 != 0
}
