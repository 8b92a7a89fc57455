package workspace

import "testing"

func TestSocket(t *testing.T) {
	for _, c := range []struct{ own, runtime, state, want string }{
		{"/a/b.sock", "/run/user/1", "/state", "/a/b.sock"},
		{"", "/run/user/1", "/state", "/run/user/1/hutch/hutchd.sock"},
		{"", "relative", "/state", "/state/hutch/hutchd.sock"},
		{"", "", "/state", "/state/hutch/hutchd.sock"},
		{"relative.sock", "/run/user/1", "/state", ""},
	} {
		t.Setenv("HUTCH_SOCKET", c.own)
		t.Setenv("XDG_RUNTIME_DIR", c.runtime)
		t.Setenv("XDG_STATE_HOME", c.state)
		got, err := Socket()
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}
