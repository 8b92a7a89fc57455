package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// keyed reads a configuration file into its keys, each with a text that differs
// when its value does. Keys are in lower case: what reads them may not care.
// A file that cannot be read so is an error, and the guard then takes it that
// every key is in it.
type keyed func([]byte) (map[string]string, error)

// maxKeys bounds what one file is taken apart into.
const (
	maxKeys     = 100_000
	maxDepth    = 64
	maxSettings = 5_000 // in one file of TOML
)

var errKeys = errors.New("more keys, or deeper ones, than anybody writes")

// sep joins the parts of a key. No part of a key that matters holds it.
const sep = "."

// flatten turns nested maps and lists into dotted keys. Keys that differ only in
// case share one, whose text is all that is said of each: which of them counts
// is for the program to say that reads the file.
func flatten(value any) (map[string]string, error) {
	var flat collector
	var walk func(at string, value any, depth int) error
	walk = func(at string, value any, depth int) error {
		if depth > maxDepth {
			return errKeys
		}
		switch v := value.(type) {
		case map[string]any:
			if err := flat.add(at, "{}"); err != nil {
				return err
			}
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if err := walk(joinKey(at, strings.ToLower(key)), v[key], depth+1); err != nil {
					return err
				}
			}
		case []any:
			if err := flat.add(at, "[]"); err != nil {
				return err
			}
			for i, inner := range v {
				if err := walk(joinKey(at, strconv.Itoa(i)), inner, depth+1); err != nil {
					return err
				}
			}
		default:
			return flat.add(at, fmt.Sprintf("%T %v", v, v))
		}
		return nil
	}
	err := walk("", value, 0)
	keys := flat.keys()
	delete(keys, "")
	return keys, err
}

func joinKey(at, key string) string {
	if at == "" {
		return key
	}
	return at + sep + key
}

// jsonKeys reads JSON, with the comments and trailing commas that editors
// allow.
func jsonKeys(text []byte) (map[string]string, error) {
	plain, err := plainJSON(text)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(plain)) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(plain, new(any)); err != nil { // a Decoder's tokens are less strict
		return nil, err
	}
	var flat collector
	if err := jsonTokens(json.NewDecoder(bytes.NewReader(plain)), &flat, "", 0); err != nil {
		return nil, err
	}
	keys := flat.keys()
	delete(keys, "")
	return keys, nil
}

// jsonTokens collects the keys of one value as flatten does, and of a key that
// is given twice both values: parsers differ in which they take.
func jsonTokens(d *json.Decoder, flat *collector, at string, depth int) error {
	if depth > maxDepth {
		return errKeys
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		return flat.add(at, fmt.Sprintf("%T %v", token, token))
	}
	if err := flat.add(at, map[json.Delim]string{'{': "{}", '[': "[]"}[delim]); err != nil {
		return err
	}
	for i := 0; d.More(); i++ {
		key := strconv.Itoa(i)
		if delim == '{' {
			name, err := d.Token()
			if err != nil {
				return err
			}
			key = strings.ToLower(fmt.Sprint(name))
		}
		if err := jsonTokens(d, flat, joinKey(at, key), depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// plainJSON takes comments and trailing commas out of JSON.
func plainJSON(text []byte) ([]byte, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	out := make([]byte, 0, len(text))
	comma := -1 // where in out the last comma is that nothing but space follows
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return nil, errors.New("a string does not end")
			}
			out = append(out, text[i:end+1]...)
			i, comma = end, -1
			continue
		case c == '/' && i+1 < len(text) && text[i+1] == '/':
			for i < len(text) && text[i] != '\n' {
				i++
			}
			out = append(out, '\n')
			continue
		case c == '/' && i+1 < len(text) && text[i+1] == '*':
			end := bytes.Index(text[i+2:], []byte("*/"))
			if end < 0 {
				return nil, errors.New("a comment does not end")
			}
			i += 2 + end + 1
			out = append(out, ' ')
			continue
		case c == ',':
			comma = len(out)
		case c == '}' || c == ']':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			comma = -1
		}
		out = append(out, c)
	}
	return out, nil
}

func tomlKeys(text []byte) (map[string]string, error) {
	// The parser looks through all keys for each: a box would pay nothing.
	if bytes.Count(text, []byte("=")) > maxSettings {
		return nil, errKeys
	}
	var value map[string]any
	if err := toml.Unmarshal(text, &value); err != nil {
		return nil, err
	}
	return flatten(value)
}

// lines yields the lines of text without their ends.
func lines(text []byte) []string {
	return strings.Split(strings.ReplaceAll(strings.TrimPrefix(string(text), "\ufeff"), "\r\n", "\n"), "\n")
}

// collector gathers keys that may be given more than once: all that is said of
// one is its text. Builders, since a box may say a million things of one key.
type collector struct {
	texts map[string]*strings.Builder
}

func (c *collector) add(key, value string) error {
	text := c.texts[key]
	if text == nil {
		if len(c.texts) == maxKeys {
			return errKeys
		}
		if c.texts == nil {
			c.texts = map[string]*strings.Builder{}
		}
		text = &strings.Builder{}
		c.texts[key] = text
	} else {
		text.WriteByte('\n')
	}
	text.WriteString(value)
	return nil
}

func (c *collector) keys() map[string]string {
	keys := make(map[string]string, len(c.texts))
	for key, text := range c.texts {
		keys[key] = text.String()
	}
	return keys
}

// shellLine is the key under which envKeys returns what a shell would run of a
// file, and some loaders with it.
const shellLine = "a command"

// envKeys reads a file of NAME=value lines. The tools that read such files
// differ in what a quote spans, so every line that could be a setting is one.
// Names keep their case. Some are shells: what they would run is a key too.
func envKeys(text []byte) (map[string]string, error) {
	var keys collector
	for _, line := range lines(text) {
		for line := range strings.SplitSeq(line, "\r") {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "export"); ok && strings.TrimLeft(rest, " \t") != rest {
				line = strings.TrimSpace(rest)
			}
			at := strings.IndexAny(line, "=:")
			if at <= 0 || line[0] == '#' {
				continue
			}
			name := strings.Trim(strings.TrimSpace(line[:at]), `"'`)
			if strings.ContainsAny(name, " \t") {
				continue
			}
			if err := keys.add(name, strings.TrimSpace(line[at+1:])); err != nil {
				return nil, err
			}
		}
	}
	for command := range shellCommands(text) {
		if err := keys.add(shellLine, command); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// shellCommands yields what a POSIX shell that sources a file of settings would
// run beside them: the substitutions, and the lines that set nothing. A setting
// of several words is not among them, as other loaders have them without quotes,
// unless what follows is a command after a separator.
func shellCommands(text []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		quote, start := byte(0), 0
		for i := 0; i <= len(text); i++ {
			if i == len(text) || text[i] == '\n' && quote == 0 {
				line := strings.TrimSpace(string(text[start:i]))
				if runs(line) && !yield(line) {
					return
				}
				start = i + 1
				continue
			}
			switch c := text[i]; {
			case c == '\\' && quote != '\'' && i+1 < len(text):
				i++
			case quote == 0 && c == '#' && (i == 0 || text[i-1] == '\n' || text[i-1] == ' ' || text[i-1] == '\t'):
				for i+1 < len(text) && text[i+1] != '\n' {
					i++
				}
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			case quote == c:
				quote = 0
			}
		}
	}
}

// runs reports whether a shell would run something of a logical line.
func runs(line string) bool {
	line = strings.TrimSpace(line)
	if rest, ok := strings.CutPrefix(line, "export "); ok {
		line = strings.TrimSpace(rest)
	}
	if line == "" || line[0] == '#' {
		return false
	}
	name, value, ok := strings.Cut(line, "=")
	if !ok {
		name, value, ok = strings.Cut(line, ":") // as some loaders have it
	}
	if !ok || strings.ContainsAny(strings.TrimSpace(name), " \t;&|()`$\"'") {
		return true
	}
	var quote byte
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case quote == '\'':
			if c == quote {
				quote = 0
			}
		case c == '\\':
			i++
		case c == '`', c == '$' && i+1 < len(value) && value[i+1] == '(':
			return true
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#' && i > 0 && (value[i-1] == ' ' || value[i-1] == '\t'):
			return false
		case (c == ';' || c == '|' || c == '&') && strings.TrimLeft(value[i+1:], ";|& \t") != "" &&
			(i > 0 && (value[i-1] == ' ' || value[i-1] == '\t') || value[i+1] == ' ' || value[i+1] == '\t'):
			return true // a URL has none of these beside a space
		case (c == '<' || c == '>') && i+1 < len(value) && value[i+1] == '(':
			return true
		}
	}
	return false
}

// iniKeys reads what Python's configparser and its like read: "section.key".
func iniKeys(text []byte) (map[string]string, error) {
	var keys collector
	section, last := "", ""
	for _, line := range lines(bytes.ReplaceAll(text, []byte("\r"), []byte("\n"))) { // as Python takes a line
		bare := strings.TrimSpace(line)
		switch {
		case bare == "" || bare[0] == '#' || bare[0] == ';':
			continue
		case bare[0] == '[' && strings.HasSuffix(bare, "]"):
			section, last = strings.ToLower(bare[1:len(bare)-1]), ""
			continue
		}
		if last != "" && (line[0] == ' ' || line[0] == '\t') {
			if err := keys.add(last, bare); err != nil { // goes on
				return nil, err
			}
		}
		at := strings.IndexAny(bare, "=:")
		if at < 0 {
			continue
		}
		last = joinKey(section, strings.ToLower(strings.TrimSpace(bare[:at])))
		if err := keys.add(last, strings.TrimSpace(bare[at+1:])); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// propertyKeys reads the properties of Java (java.util.Properties.load): a key
// ends at "=", ":" or white space, a backslash escapes and takes the next line
// along, and a line may end in CR alone.
func propertyKeys(text []byte) (map[string]string, error) {
	const space = " \t\f"
	var keys collector
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	var whole string
	goesOn := false
	for line := range strings.SplitSeq(string(bytes.ReplaceAll(text, []byte("\r"), []byte("\n"))), "\n") {
		line = strings.TrimLeft(line, space)
		if !goesOn && (line == "" || line[0] == '#' || line[0] == '!') {
			continue
		}
		whole += line
		if bare := strings.TrimRight(line, `\`); (len(line)-len(bare))%2 == 1 {
			whole, goesOn = whole[:len(whole)-1], true
			if len(whole) > maxLine {
				return nil, errKeys
			}
			continue
		}
		if err := addProperty(&keys, whole); err != nil {
			return nil, err
		}
		whole, goesOn = "", false
	}
	if err := addProperty(&keys, whole); err != nil {
		return nil, err
	}
	return keys.keys(), nil
}

// maxLine bounds a line that is put together from many.
const maxLine = 64 << 10

func addProperty(keys *collector, line string) error {
	end := 0
	for end < len(line) && strings.IndexByte("=: \t\f", line[end]) < 0 {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(line))
	value := strings.TrimLeft(line[end:], " \t\f")
	if value != "" && (value[0] == '=' || value[0] == ':') {
		value = strings.TrimLeft(value[1:], " \t\f")
	}
	key, err := unescapeProperty(line[:end])
	if err != nil || line == "" {
		return err
	}
	if value, err = unescapeProperty(value); err != nil {
		return err
	}
	return keys.add(strings.ToLower(key), value)
}

func unescapeProperty(text string) (string, error) {
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 == len(text) {
			plain.WriteByte(c)
			continue
		}
		i++
		switch c = text[i]; c {
		case 'u':
			if i+4 >= len(text) {
				return "", errors.New("an escape does not end")
			}
			code, err := strconv.ParseUint(text[i+1:i+5], 16, 16)
			if err != nil {
				return "", errors.New("an escape is malformed")
			}
			plain.WriteRune(rune(code))
			i += 4
		case 't', 'n', 'r', 'f':
			plain.WriteByte(map[byte]byte{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f'}[c])
		default:
			plain.WriteByte(c)
		}
	}
	return plain.String(), nil
}

// yamlKeys reads the keys at the top of a YAML mapping in block style, each
// with the lines beneath it. What could hide a key, as flow style at the top,
// merges, tags, anchors and escapes do, is an error.
func yamlKeys(text []byte) (map[string]string, error) {
	var keys collector
	last := ""
	for i, line := range lines(text) {
		// YAML ends a line at each of these, YAML 1.1 at all of them.
		if strings.ContainsAny(line, "\r\u0085\u2028\u2029") {
			return nil, fmt.Errorf("line %d has a line break of another kind in it", i+1)
		}
		bare := strings.TrimRight(line, " \t")
		if bare == "" || bare[0] == '#' || bare == "---" || bare == "..." || bare[0] == '%' {
			continue
		}
		if bare[0] == ' ' || bare[0] == '-' && last != "" || strings.TrimLeft(bare, " ") == "" {
			if last == "" {
				return nil, fmt.Errorf("line %d is indented beneath nothing", i+1)
			}
			if err := keys.add(last, bare); err != nil {
				return nil, err
			}
			continue
		}
		key, value, ok := strings.Cut(bare+" ", ": ")
		if !ok {
			return nil, fmt.Errorf("line %d is no key", i+1)
		}
		key = strings.TrimSpace(key)
		if n := len(key); n > 1 && (key[0] == '"' || key[0] == '\'') && key[n-1] == key[0] {
			key = key[1 : n-1]
		}
		if key == "" || strings.ContainsAny(key, "\"'{}[]\t&*!|>%@`\\?,#") || strings.Contains(key, "<<") {
			return nil, fmt.Errorf("line %d has a key in a form that is not looked through", i+1)
		}
		last = strings.ToLower(key)
		if err := keys.add(last, strings.TrimSpace(value)); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// frontMatter reads the keys between the "---" lines at the top of a text; a
// text without them has none. Where no line is the mark alone, it ends where the
// mark stands last: some readers look for it anywhere.
func frontMatter(text []byte) (map[string]string, error) {
	if first, _, _ := bytes.Cut(bytes.TrimLeft(text, "\ufeff \t\n\r"), []byte("\r")); bytes.Equal(first, []byte("---")) {
		text = bytes.ReplaceAll(text, []byte("\r"), []byte("\n")) // the line ends of old Macs
	}
	all := lines(text)
	for len(all) > 0 && strings.TrimSpace(all[0]) == "" {
		all = all[1:]
	}
	if len(all) == 0 || strings.TrimSpace(all[0]) != "---" {
		return nil, nil
	}
	all = all[1:]
	end := slices.IndexFunc(all, func(line string) bool { return strings.TrimSpace(line) == "---" })
	if end < 0 {
		for i, line := range all {
			if at := strings.Index(line, "---"); at >= 0 {
				all[i], end = line[:at], i+1
			}
		}
	}
	if end < 0 {
		return nil, nil
	}
	return yamlKeys([]byte(strings.Join(all[:end], "\n")))
}

// goModKeys reads the directives of a go.mod or go.work file.
func goModKeys(text []byte) (map[string]string, error) {
	var keys collector
	block := ""
	for _, line := range lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case block != "" && words[0] == ")":
			block = ""
			continue
		case block == "" && len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		case block != "":
			words = append([]string{block}, words...)
		}
		if err := keys.add(words[0], strings.Join(words[1:], " ")); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}

// goGenerate reads the commands that go generate would run.
func goGenerate(text []byte) (map[string]string, error) {
	const mark = "//go:generate"
	if !bytes.Contains(text, []byte(mark)) {
		return nil, nil
	}
	keys := map[string]string{}
	for _, line := range lines(text) {
		if rest, ok := strings.CutPrefix(line, mark); ok && (strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "\t")) {
			keys["go:generate"+rest] = ""
		}
	}
	return keys, nil
}

// todoKeys reads the commands of a rebase that is under way.
func todoKeys(text []byte) (map[string]string, error) {
	var keys collector
	for _, line := range lines(text) {
		command, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		command, tabbed, _ := strings.Cut(command, "\t")
		if err := keys.add(strings.ToLower(command), tabbed+rest); err != nil {
			return nil, err
		}
	}
	return keys.keys(), nil
}
