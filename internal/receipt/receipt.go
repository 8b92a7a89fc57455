package receipt

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zeebo/blake3"
)

// The schemas of the lines.
const (
	Schema       = "hutch.receipt/v1"
	RepairSchema = "hutch.receipt.repair/v1"
)

// Genesis is the prev of the first line.
const Genesis = "blake3:0000000000000000000000000000000000000000000000000000000000000000"

// MaxLine bounds one line, its newline left out: whoever reads the log holds a
// line in memory. Writers cap the lists in their records well below.
const MaxLine = 16 << 20

// Receipt is one line of the log.
type Receipt struct {
	Schema string    `json:"schema"`
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Prev   string    `json:"prev"`

	Line int             `json:"-"` // its number in the log, from 1; 0 just after Append
	Hash string          `json:"-"` // what the next line's prev must say
	Raw  json.RawMessage `json:"-"` // the whole line, without its newline
}

// repair is a line that accounts for torn bytes before it.
type repair struct {
	Receipt
	Torn      string `json:"torn"`
	TornBytes int64  `json:"torn_bytes"`
	sealed    bool   // the line's seal is right
}

func digest(b []byte) string {
	sum := blake3.Sum256(b)
	return "blake3:" + hex.EncodeToString(sum[:])
}

// sealField comes last in a line and holds the hash of all before it, so that a
// changed line shows by itself, the last one too. (Whoever computes it anew
// meets the next line's prev.)
const sealField = `,"seal":"`

const sealLength = len(sealField) + len(Genesis) + len(`"}`)

// unsealed returns a line without its seal, and whether that is the right one.
func unsealed(line []byte) (rest []byte, sound bool) {
	at := len(line) - sealLength
	if at < 0 || !bytes.HasPrefix(line[at:], []byte(sealField)) {
		return line, false
	}
	return line[:at], string(line[at:]) == sealField+digest(line[:at])+`"}`
}

// parse reads one line, without its newline. What is not a receipt or a repair
// in every respect is neither.
func parse(line []byte) (repair, error) {
	var r repair
	if err := json.Unmarshal(line, &r); err != nil {
		return repair{}, errors.New("not a JSON object of the right form")
	}
	switch {
	case r.Schema != Schema && r.Schema != RepairSchema:
		return repair{}, fmt.Errorf("unknown schema %q", r.Schema)
	case r.ID == "":
		return repair{}, errors.New("no id")
	case r.Time.IsZero():
		return repair{}, errors.New("no time")
	case len(r.Prev) != len(Genesis) || !strings.HasPrefix(r.Prev, "blake3:"):
		return repair{}, errors.New("no prev")
	}
	r.Hash = digest(line)
	r.Raw = line
	_, r.sealed = unsealed(line)
	return r, nil
}

// format makes one line, its newline included, from the chain's fields and a
// record's own.
func format(r Receipt, fields []byte) ([]byte, error) {
	head, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	line := make([]byte, 0, len(head)+len(fields)+2)
	line = append(line, head[:len(head)-1]...)
	if len(fields) > 2 { // not "{}"
		line = append(line, ',')
		line = append(line, fields[1:]...)
	} else {
		line = append(line, '}')
	}
	line = line[:len(line)-1] // the last brace
	seal := digest(line)
	line = append(line, sealField...)
	line = append(line, seal...)
	return append(line, "\"}\n"...), nil
}

// fieldsOf returns record as one JSON object that holds none of the chain's
// fields: a second "prev" would let a record speak for the log.
func fieldsOf(record any) ([]byte, error) {
	fields, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(fields, []byte("{")) {
		return nil, errors.New("the record is not a JSON object")
	}
	if !mayHold(fields) {
		return fields, nil
	}
	// Matched without regard to case, as the reader does.
	var chain struct{ Schema, ID, Time, Prev, Seal json.RawMessage }
	if err := json.Unmarshal(fields, &chain); err != nil {
		return nil, err
	}
	for name, value := range map[string]json.RawMessage{"schema": chain.Schema, "id": chain.ID, "time": chain.Time, "prev": chain.Prev, "seal": chain.Seal} {
		if value != nil {
			return nil, fmt.Errorf("the record has a field %q of its own, which belongs to the log", name)
		}
	}
	return fields, nil
}

// mayHold reports whether an object, as json.Marshal writes it, could have a
// field of the chain's at its top. Where a name may be written by escapes, or
// folds from beyond ASCII, it is to be looked at closely.
func mayHold(object []byte) bool {
	for _, b := range object {
		if b == '\\' || b >= 0x80 {
			return true
		}
	}
	lower := bytes.ToLower(object)
	for _, name := range []string{`"schema":`, `"id":`, `"time":`, `"prev":`, `"seal":`} {
		if bytes.Contains(lower, []byte(name)) {
			return true
		}
	}
	return false
}
