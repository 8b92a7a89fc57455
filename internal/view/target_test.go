package view

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fakeAccounts(t *testing.T) accounts {
	t.Helper()
	etc := t.TempDir()
	write(t, etc, "passwd", `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
# a comment
+@nis::::::
broken:x:not a number:5::/home/broken:/bin/sh
short:x:7
ann:x:1000:1000:Ann,,,:/home/ann:/bin/zsh
bob:x:1001:100:Bob:/home/bob/:/bin/sh
svc:x:999:999::/:/usr/sbin/nologin
4242:x:1005:1005:named like a number:/home/n:/bin/sh
`)
	write(t, etc, "group", `root:x:0:
sudo:x:27:ann
docker:x:998:bob,ann
users:x:100:ann,bob
ann:x:1000:
anna:x:1100:anna,annabel
broken:x:zz:ann
none:x:4294967295:ann
`)
	return accounts{etc}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTarget(t *testing.T) {
	a := fakeAccounts(t)
	root, ann, bob := ID{0, 0}, ID{1000, 1000}, ID{1001, 100}
	annUser := User{UID: 1000, GID: 1000, Groups: []uint32{27, 100, 998}, Name: "ann", Home: "/home/ann"}
	annAsRoot := annUser
	annAsRoot.Root = true
	rootUser := User{Root: true, Name: "root", Home: "/root"}
	tests := []struct {
		name            string
		owner, invoking ID
		flag            string
		want            User
		err             bool
	}{
		{"oneself", ann, ann, "", annUser, false},
		{"oneself, in another's workspace", bob, ann, "", annUser, false},
		{"oneself, in root's workspace", root, ann, "", annUser, false},
		{"root runs as the owner", ann, root, "", annUser, false},
		{"root in its own workspace", root, root, "", rootUser, false},
		{"root insists", ann, root, "root", rootUser, false},
		{"root insists by number", ann, root, "0", rootUser, false},
		{"root picks another", ann, root, "bob", User{UID: 1001, GID: 100, Groups: []uint32{998}, Name: "bob", Home: "/home/bob"}, false},
		{"root picks a uid", root, root, "1000", annUser, false},
		{"root picks a uid and gid", root, root, "1000:100", User{UID: 1000, GID: 100, Groups: []uint32{27, 998, 1000}, Name: "ann", Home: "/home/ann"}, false},
		{"a name that is a number is a name", root, root, "4242", User{UID: 1005, GID: 1005, Name: "4242", Home: "/home/n"}, false},
		{"a uid without an account", root, root, "7777", User{UID: 7777, GID: 7777, Name: "7777", Home: "/home/7777"}, false},
		{"an owner without an account", ID{5000, 6000}, root, "", User{UID: 5000, GID: 6000, Name: "5000", Home: "/home/5000"}, false},
		{"oneself without an account", ann, ID{5000, 0}, "", User{UID: 5000, Name: "5000", Home: "/home/5000"}, false},
		{"a home that is the root is none", ID{999, 999}, root, "", User{UID: 999, GID: 999, Name: "svc", Home: "/home/999"}, false},
		{"an ordinary user as root inside", ann, ann, "root", annAsRoot, false},
		{"an ordinary user names itself", bob, ann, "ann", annUser, false},
		{"an ordinary user gains no group", ann, ann, "1000:27", annUser, false},
		{"an ordinary user as another", bob, ann, "bob", User{}, true},
		{"an ordinary user as another's uid", bob, ann, "1001", User{}, true},
		{"nobody of that name", ann, root, "eve", User{}, true},
		{"not a gid", ann, root, "ann:users", User{}, true},
		{"the number that means none", ann, root, "4294967295", User{}, true},
		{"too large a number", ann, root, "4294967296", User{}, true},
		{"negative", ann, root, "-1", User{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := a.target(tt.owner, tt.invoking, tt.flag)
			if (err != nil) != tt.err {
				t.Fatalf("error: %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestTargetWithoutFiles(t *testing.T) {
	got, err := accounts{t.TempDir()}.target(ID{1000, 1000}, ID{}, "")
	want := User{UID: 1000, GID: 1000, Name: "1000", Home: "/home/1000"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// FuzzTarget: whatever stands in the files, the home of a box is a place where
// a home can be made, and nobody but root becomes another.
func FuzzTarget(f *testing.F) {
	f.Add("ann:x:1000:1000::/:/bin/sh\n", "users:x:100:ann\n", "ann", uint32(1000))
	f.Add("..:x:5:5::/:/bin/sh\n", "", "", uint32(5))
	f.Add("+::::::\n::0:0:::\n", ":::", "0:0", uint32(0))
	f.Fuzz(func(t *testing.T, passwd, group, flag string, uid uint32) {
		etc := t.TempDir()
		write(t, etc, "passwd", passwd)
		write(t, etc, "group", group)
		u, err := accounts{etc}.target(ID{1, 1}, ID{uid, uid}, flag)
		if err != nil {
			return
		}
		if !filepath.IsAbs(u.Home) || u.Home == "/" || u.Home != filepath.Clean(u.Home) {
			t.Errorf("home %q", u.Home)
		}
		if uid != 0 && (u.UID != uid || u.GID != uid) {
			t.Errorf("uid %d became %+v", uid, u)
		}
	})
}
