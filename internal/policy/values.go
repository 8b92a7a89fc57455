package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"hutch/internal/fsat"
)

// Parse reads the text of a value, as a flag or an environment variable gives
// it: elements of a list are separated by commas.
func (k *Key) Parse(text string) (any, error) {
	var v any
	var err error
	switch k.field(&shape).(type) {
	case **bool:
		v, err = parseBool(text)
	case **string:
		v = text
	case **Size:
		var s Size
		err = s.UnmarshalText([]byte(text))
		v = s
	case **int64:
		var n int64
		if n, err = strconv.ParseInt(strings.TrimSpace(text), 10, 64); err != nil {
			err = fmt.Errorf("%q is not a whole number", text)
		}
		v = n
	case **float64:
		var n float64
		if n, err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil {
			err = fmt.Errorf("%q is not a number", text)
		}
		v = n
	case **Duration:
		var d Duration
		err = d.UnmarshalText([]byte(text))
		v = d
	case *[]string:
		v = elements(text)
	case *[]uint16:
		ports := []uint16{}
		for _, element := range elements(text) {
			port, perr := strconv.ParseUint(element, 10, 16)
			if perr != nil {
				return nil, fmt.Errorf("%q is not a port: give 1 to 65535", element)
			}
			ports = append(ports, uint16(port))
		}
		v = ports
	case *map[string]string:
		set := map[string]string{}
		for _, element := range elements(text) {
			name, value, ok := strings.Cut(element, "=")
			if !ok {
				return nil, fmt.Errorf("%q is not NAME=VALUE", element)
			}
			set[name] = value
		}
		v = set
	}
	if err != nil {
		return nil, err
	}
	return v, k.check(v)
}

func elements(text string) []string {
	list := []string{}
	for element := range strings.SplitSeq(text, ",") {
		if element != "" {
			list = append(list, element)
		}
	}
	return list
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", text)
}

// decode takes a value as a TOML or JSON document holds it.
func (k *Key) decode(raw any) (any, error) {
	var v any
	switch k.field(&shape).(type) {
	case **bool:
		b, ok := raw.(bool)
		if !ok {
			return nil, errors.New("give true or false")
		}
		v = b
	case **string:
		s, ok := raw.(string)
		if !ok {
			return nil, errors.New("give a text in quotes")
		}
		v = s
	case **Size, **Duration, **int64, **float64:
		switch raw := raw.(type) {
		case string:
			switch k.field(&shape).(type) {
			case **Size, **Duration:
				return k.Parse(raw)
			}
			return nil, errors.New("give a number, without quotes")
		case int64:
			return k.Parse(strconv.FormatInt(raw, 10))
		case float64:
			return k.decodeNumber(raw)
		case json.Number:
			if n, err := raw.Int64(); err == nil {
				return k.Parse(strconv.FormatInt(n, 10))
			}
			n, err := raw.Float64()
			if err != nil {
				return nil, fmt.Errorf("%s is too large", raw)
			}
			return k.decodeNumber(n)
		}
		return nil, errors.New("give a number")
	case *[]string:
		list, err := texts(raw)
		if err != nil {
			return nil, err
		}
		v = list
	case *[]uint16:
		list, ok := raw.([]any)
		if !ok {
			return nil, errors.New("give a list of ports")
		}
		ports := []uint16{}
		for _, element := range list {
			text := ""
			switch n := element.(type) {
			case int64:
				text = strconv.FormatInt(n, 10)
			case json.Number:
				text = plain(n)
			}
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("%v is not a port: give 1 to 65535", element)
			}
			ports = append(ports, uint16(port))
		}
		v = ports
	case *map[string]string:
		table, ok := raw.(map[string]any)
		if !ok {
			return nil, errors.New("give a table of texts")
		}
		set := map[string]string{}
		for name, element := range table {
			text, ok := element.(string)
			if !ok {
				return nil, fmt.Errorf("%s: give a text in quotes", name)
			}
			set[name] = text
		}
		v = set
	}
	return v, k.check(v)
}

// decodeNumber takes a number with a point or an exponent.
func (k *Key) decodeNumber(n float64) (any, error) {
	switch k.field(&shape).(type) {
	case **Size, **int64:
		if n != math.Trunc(n) {
			return nil, fmt.Errorf("%v is not a whole number", n)
		}
	}
	return k.Parse(decimal(n))
}

// decimal writes a number without an exponent.
func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// plain writes a number of JSON without an exponent: 1e3 is 1000.
func plain(n json.Number) string {
	if f, err := n.Float64(); err == nil && strings.ContainsAny(string(n), "eE.") {
		return decimal(f)
	}
	return string(n)
}

func texts(raw any) ([]string, error) {
	list, ok := raw.([]any)
	if !ok {
		return nil, errors.New("give a list of texts")
	}
	found := []string{}
	for _, element := range list {
		text, ok := element.(string)
		if !ok {
			return nil, fmt.Errorf("%v is no text: give it in quotes", element)
		}
		found = append(found, text)
	}
	return found, nil
}

// check says whether a value of the right type can be meant.
func (k *Key) check(v any) error {
	switch v := v.(type) {
	case Size:
		if v < 0 { // per cent of the host's memory
			if !k.share {
				return errors.New("only memory and swap can be given in per cent")
			}
			return nil
		}
		if k.min > 0 && v > 0 && float64(v) < k.min {
			return fmt.Errorf("%s is too small: give at least %s, or 0 for no limit", v, Size(k.min))
		}
	case int64, float64, Duration:
		n := number(v)
		if d, ok := v.(Duration); ok {
			n = time.Duration(d).Seconds()
		}
		if math.IsNaN(n) || n < 0 || n > k.max || n > 0 && n < k.min {
			return fmt.Errorf("%v: give %s to %s, or 0 for no limit", format(v), decimal(k.min), decimal(k.max))
		}
	case []uint16:
		if slices.Contains(v, 0) {
			return errors.New("0 is not a port: give 1 to 65535")
		}
	case string:
		if k.order == ground && profileText(v) == "" {
			return fmt.Errorf("there is no profile %q: use %s", v, strings.Join(Profiles(), ", "))
		}
	case []string:
		for _, element := range v {
			if err := k.checkElement(element); err != nil {
				return err
			}
		}
	case map[string]string:
		for name, text := range v {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(text, 0) >= 0 {
				return fmt.Errorf("%q=%q cannot be a variable", name, text)
			}
		}
	}
	return nil
}

func (k *Key) checkElement(text string) error {
	switch k.Name {
	case "env.pass":
		if name := strings.TrimSuffix(text, "*"); name == "" && text != "*" || strings.ContainsAny(name, "=*\x00") {
			return fmt.Errorf("%q is not the name of a variable; one may end in *", text)
		}
		return nil
	case "paths.hide":
		return checkPattern(text)
	}
	return fsat.CheckArgument(text, fsat.Home)
}

// UnmarshalText reads "512M", "1GiB", "1.5G", "4096" or "75%".
func (s *Size) UnmarshalText(b []byte) error {
	text := string(b)
	upper := strings.ToUpper(strings.TrimSpace(text))
	if percent, ok := strings.CutSuffix(upper, "%"); ok {
		n, err := strconv.Atoi(percent)
		if err != nil || n < 1 || n > 100 {
			return fmt.Errorf("%q is not a share of the memory; give 1%% to 100%%", text)
		}
		*s = Size(-n)
		return nil
	}
	upper = strings.TrimSuffix(strings.TrimSuffix(upper, "B"), "I")
	shift := 0
	if i := strings.IndexAny(upper, "KMGT"); i >= 0 && i == len(upper)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGT", upper[i]))
		upper = upper[:i]
	}
	if digits, ok := strings.CutPrefix(upper, "-"); ok && isNumber(digits) {
		return fmt.Errorf("%q is negative; give a positive size", text)
	}
	n, err := strconv.ParseFloat(upper, 64)
	bytes := n * float64(int64(1)<<shift)
	switch {
	case !isNumber(upper) || err != nil && !errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%q is not a size; give a number of bytes, or one with K, M, G or T", text)
	case bytes >= 1<<62:
		return fmt.Errorf("%q is too large", text)
	case bytes > 0 && bytes < 1: // 0 is no limit at all
		return fmt.Errorf("%q is less than a byte; give a positive size, or 0 for no limit", text)
	}
	*s = Size(bytes)
	return nil
}

// isNumber reports whether a text consists of digits and points: no exponent,
// no underscore, no name of a number.
func isNumber(text string) bool { return text != "" && strings.Trim(text, "0123456789.") == "" }

// String writes a size with the largest unit that divides it.
func (s Size) String() string {
	n := int64(s)
	if n < 0 {
		return strconv.FormatInt(-n, 10) + "%"
	}
	for _, unit := range []struct {
		shift int
		name  string
	}{{40, "T"}, {30, "G"}, {20, "M"}, {10, "K"}} {
		if n != 0 && n%(1<<unit.shift) == 0 {
			return strconv.FormatInt(n>>unit.shift, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// MarshalText writes what String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads a text or a number.
func (s *Size) UnmarshalJSON(b []byte) error { return s.UnmarshalText(unquote(b)) }

// UnmarshalText reads "30s", "1m30s" or a number of seconds.
func (d *Duration) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	span, err := time.ParseDuration(text)
	if err != nil {
		span, err = time.ParseDuration(text + "s")
	}
	switch {
	case err != nil || text[0] == '+':
		return fmt.Errorf("%q is not a time; give 30s, 2m or a number of seconds", text)
	case span < 0:
		return fmt.Errorf("%q is negative; give a positive time, or 0 for none", text)
	case span > maxSeconds*time.Second:
		return fmt.Errorf("%q is too long; give 0 for no limit", text)
	case span == 0 && strings.Trim(text, "0.hmsuµn") != "":
		return fmt.Errorf("%q is less than a nanosecond; give a positive time, or 0 for none", text)
	}
	*d = Duration(span)
	return nil
}

// String writes a duration as short as it can be: 10m, not 10m0s.
func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalText writes what String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalJSON reads a text or a number of seconds.
func (d *Duration) UnmarshalJSON(b []byte) error { return d.UnmarshalText(unquote(b)) }

func unquote(b []byte) []byte {
	var text string
	if json.Unmarshal(b, &text) == nil {
		return []byte(text)
	}
	return b
}

// format writes a value as a TOML document does.
func format(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case Size:
		if v == 0 {
			return "0"
		}
		return quote(v.String())
	case Duration:
		if v == 0 {
			return "0"
		}
		return quote(v.String())
	case []string:
		quoted := make([]string, len(v))
		for i := range v {
			quoted[i] = quote(v[i])
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case []uint16:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = strconv.Itoa(int(v[i]))
		}
		return "[" + strings.Join(texts, ", ") + "]"
	case map[string]string:
		var pairs []string
		for name, text := range v {
			pairs = append(pairs, quote(name)+" = "+quote(text))
		}
		slices.Sort(pairs)
		if len(pairs) == 0 {
			return "{}"
		}
		return "{ " + strings.Join(pairs, ", ") + " }"
	}
	if b, ok := v.(bool); ok {
		return strconv.FormatBool(b)
	}
	return fmt.Sprint(v)
}

// quote writes a basic string of TOML. What does not print is escaped: it may be
// shown on a terminal.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		case c <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// SetFlag makes a document say what the key's flag does. A flag that takes a
// value may be repeated where the key is a list.
func (k *Key) SetFlag(p *Policy, text string) error {
	if k.Says != "" {
		on, err := parseBool(text)
		if err != nil {
			return err
		}
		k.set(p, on == (k.Says == "true"))
		return nil
	}
	before := k.get(p)
	if list, ok := k.field(p).(*[]string); ok { // a path may hold a comma
		if err := k.checkElement(text); err != nil {
			return err
		}
		*list = append(*list, text)
		return nil
	}
	v, err := k.Parse(text)
	if err != nil {
		return err
	}
	if ports, ok := before.([]uint16); ok {
		v = append(ports, v.([]uint16)...)
	}
	k.set(p, v)
	return nil
}

// FlagHelp describes the key's flag.
func (k *Key) FlagHelp() string {
	help := k.Help
	if k.Says == "false" {
		help = "not to " + strings.Replace(help, "; without it ", "; ", 1)
	}
	if k.list() {
		help += "; may be repeated"
	}
	if k.Default != "" && k.Says == "" && k.Default != "0" {
		help += " (default " + k.Default + ")"
	}
	return help
}

// Type names the values of the key, for help texts.
func (k *Key) Type() string {
	switch k.field(&shape).(type) {
	case **bool:
		return "bool"
	case **Size:
		return "size"
	case **Duration:
		return "duration"
	case **string:
		return "name"
	case *[]uint16:
		return "port"
	case *[]string:
		return "path"
	}
	return "number"
}
