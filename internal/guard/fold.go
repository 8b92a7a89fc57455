package guard

import (
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// fold returns the path that all paths share which some file system takes for
// the same: ext4 with casefold and APFS ignore case and the form of
// normalisation, HFS+ and ext4 code points that show nothing, NTFS and FAT
// trailing dots and spaces and what follows a colon, and NTFS may answer to
// "git~1" (CVE-2014-9390, CVE-2019-1352, CVE-2019-1353).
//
// Separate components stay separate, and the number of them is unchanged.
func fold(path string) string {
	plain := true
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c >= 0x80 || 'A' <= c && c <= 'Z' || c == ':' || c == '~' ||
			(c == '.' || c == ' ') && (i+1 == len(path) || path[i+1] == '/') {
			plain = false
			break
		}
	}
	if plain {
		return path
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = foldName(part)
	}
	return strings.Join(parts, "/")
}

func foldName(name string) string {
	ascii := true
	for i := 0; i < len(name); i++ {
		ascii = ascii && name[i] < 0x80
	}
	if ascii {
		name = strings.ToLower(name)
	} else {
		// Twice: a decomposition may uncover what folds, and folding what
		// decomposes.
		name = strings.Map(visible, name)
		name = norm.NFD.String(cases.Fold().String(norm.NFD.String(name)))
		name = norm.NFC.String(strings.Map(visible, name))
	}
	if at := strings.IndexByte(name, ':'); at > 0 {
		name = name[:at]
	}
	if bare := strings.TrimRight(name, ". "); bare != "" {
		name = bare
	}
	if name == "git~1" {
		return ".git"
	}
	return name
}

// visible drops the code points that file systems ignore.
func visible(r rune) rune {
	if r >= 0x80 && (unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) ||
		unicode.Is(unicode.Variation_Selector, r)) {
		return -1
	}
	return r
}
