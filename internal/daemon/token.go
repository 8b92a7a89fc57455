package daemon

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// leastToken is how many bytes a token must have.
const leastToken = 16

// ReadToken reads a token from a file that nobody else may read.
func ReadToken(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("token: others may read %s: chmod 600 %s", path, path)
	}
	text := make([]byte, 4096)
	n, err := f.Read(text)
	if err != nil {
		return nil, fmt.Errorf("token: %s: %w", path, err)
	}
	return CheckToken(bytes.TrimSpace(text[:n]))
}

// CheckToken refuses a token that could be guessed, or sent in no header.
func CheckToken(token []byte) ([]byte, error) {
	if len(token) < leastToken {
		return nil, fmt.Errorf("token: give at least %d characters, such as `head -c 24 /dev/urandom | base64` makes", leastToken)
	}
	if slices.ContainsFunc(token, func(c byte) bool { return c <= ' ' || c > '~' }) {
		return nil, errors.New("token: give one word of printable ASCII")
	}
	return token, nil
}

// knows tells whether a request has the token. How long that takes tells
// nothing of it: digests of one length are compared.
func (s *Server) knows(header string) bool {
	given, ok := strings.CutPrefix(header, "Bearer ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256(s.o.Token)
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && ok && len(s.o.Token) > 0
}

// ours tells whether a Host names this daemon: an address, which no DNS can make
// point elsewhere, localhost, or a host that it was told to listen at.
func (s *Server) ours(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return name == "localhost" || name != "" && slices.Contains(s.o.Hosts, name)
}
