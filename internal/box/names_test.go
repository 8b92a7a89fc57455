package box

import (
	"regexp"
	"strings"
	"testing"
)

func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "a", "-a", "a-b_C9", "a/b", "é", strings.Repeat("x", 64), strings.Repeat("x", 65), "m4gxn2bya7hf", "m4gxn2bya7hi"} {
		f.Add(s)
	}
	name, id := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\z`), regexp.MustCompile(`^[0-9abcdefghjkmnpqrstvwxyz]{12}\z`)
	f.Fuzz(func(t *testing.T, s string) {
		if isName(s) != name.MatchString(s) || isID(s) != id.MatchString(s) {
			t.Errorf("%q: name %v, id %v", s, isName(s), isID(s))
		}
	})
}
