package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/view"
)

// Sources are the places that a policy comes from, the strongest first.
type Sources struct {
	Given     Policy   // by flags or by a Go program
	GivenBy   string   // "flag" for flags; "" for a program
	File      string   // a document in TOML or JSON that counts as given; "" for none
	Environ   []string // NAME=VALUE
	Workspace []byte   // content of the workspace's file on the host; nil for none
	Path      string   // of the workspace, absolute and real
	UserFile  string   // the user's configuration, which need not exist; "" for none

	// State is hutch's state directory, where trusted contents are noted.
	State string
	// Home is asked for when a path begins with "~/".
	Home func() (string, error)
	// Memory is asked for when a limit is a share of the host's: bytes.
	Memory func() (int64, error)
}

// layer is a document and its place among the others.
type layer struct {
	*document
	weight weight
}

type weight uint8

const (
	fromDefault weight = iota
	fromProfile
	fromUser
	fromWorkspace
	fromEnvironment // this and what follows overrules the workspace
	fromFile
	fromFlags
)

// resolution is a policy in force in the making.
type resolution struct {
	Sources
	force   *InForce
	layers  []layer // the workspace's is not among them
	own     *workspaceDocument
	origins map[string]weight
}

// Resolve puts the sources together. Where one says nothing of a key, the next
// weaker one decides: flags, the environment, the user's file, a profile. The
// workspace's file is the agent's to write, and may only tighten: its lines
// hold against the user's file and the profile as far as they allow less.
// Others are not in force, and noted, unless the user trusted exactly this
// content. A document that cannot be read to the end is an error.
func Resolve(s Sources) (*InForce, error) {
	r := &resolution{Sources: s, force: &InForce{Origins: make([]Origin, 0, len(keys))}, origins: make(map[string]weight, len(keys))}
	if err := r.load(); err != nil {
		return nil, err
	}
	if err := r.profile(); err != nil {
		return nil, err
	}
	for i := range keys {
		k := &keys[i]
		if k.order == ground {
			continue
		}
		var err error
		if k.list() {
			err = r.gather(k)
		} else {
			err = r.choose(k)
		}
		if err != nil {
			return nil, err
		}
	}
	return r.force, r.finish()
}

func (r *resolution) load() error {
	add := func(w weight, doc *document, err error) error {
		if err == nil && doc != nil {
			r.layers = append(r.layers, layer{doc, w})
		}
		return err
	}
	user, notes, err := userDocument(r.UserFile, r.Path)
	if err := add(fromUser, user, err); err != nil {
		return err
	}
	r.force.Notes = append(r.force.Notes, notes...)
	if r.Workspace != nil {
		if r.own, notes, err = parseWorkspace(r.Workspace); err != nil {
			return err
		}
		r.force.Notes = append(r.force.Notes, notes...)
	}
	env, err := environment(r.Environ)
	if err := add(fromEnvironment, env, err); err != nil {
		return err
	}
	if r.File != "" {
		doc, err := givenDocument(r.File)
		if err := add(fromFile, doc, err); err != nil {
			return err
		}
	}
	for i := range keys {
		if v := keys[i].get(&r.Given); v != nil {
			if err := keys[i].check(v); err != nil {
				return fmt.Errorf("%s: %w", r.given(&keys[i]), err)
			}
		}
	}
	return add(fromFlags, &document{Policy: r.Given, where: r.given}, nil)
}

// given names the source of a key that flags or a program said.
func (r *resolution) given(k *Key) string {
	switch {
	case r.GivenBy == "":
		return "request " + k.Name
	case k.Flag != "":
		return r.GivenBy + " --" + k.Flag
	case strings.HasPrefix(k.Name, "env."):
		return r.GivenBy + " --env"
	}
	return r.GivenBy + " " + k.Name
}

// profile chooses the ground, and puts it below everything.
func (r *resolution) profile() error {
	k := &keys[0]
	name, source, w := k.Default, "", fromDefault
	for _, l := range r.layers {
		if v := k.get(&l.Policy); v != nil {
			name, source, w = v.(string), l.where(k), l.weight
		}
	}
	if r.own != nil && r.own.Policy.Profile != nil && w < fromEnvironment {
		own := *r.own.Policy.Profile
		trusted, err := r.trusted()
		if err == nil {
			err = r.own.under(own)
		}
		if err != nil {
			return err
		}
		if trusted {
			name, source = own, r.own.where(k)
		}
	}
	ground, err := profileDocument(name)
	if err != nil {
		return err
	}
	r.layers = slices.Insert(r.layers, 0, layer{ground, fromProfile})
	r.force.Profile = name
	if source == "" {
		source = "default"
	}
	r.origin(k, name, source)
	return nil
}

func (r *resolution) origin(k *Key, v any, source string) {
	r.force.Origins = append(r.force.Origins, Origin{Key: k.Name, Value: format(v), Source: source})
}

func (r *resolution) note(format string, args ...any) {
	r.force.Notes = append(r.force.Notes, fmt.Sprintf(format, args...))
}

// choose decides a key that has one value.
func (r *resolution) choose(k *Key) error {
	v, err := k.Parse(k.Default)
	if err != nil {
		return fmt.Errorf("default of %s: %w", k.Name, err)
	}
	source, w := "profile default", fromDefault
	said := func(l layer) (err error) {
		if s := k.get(&l.Policy); s != nil {
			v, err = r.concrete(k, s)
			source, w = l.where(k), l.weight
		}
		return err
	}
	for _, l := range r.layers {
		if err := said(l); err != nil {
			return err
		}
	}
	if own := r.own.get(k); own != nil && w < fromEnvironment {
		value, err := r.concrete(k, own)
		if err != nil {
			return err
		}
		loose := k.looser(value, v)
		if loose {
			if loose, err = r.refuse(k, own); err != nil {
				return err
			}
		}
		if !loose {
			v, source, w = value, r.own.whereOf(k), fromWorkspace
		}
	}
	k.apply(r.force, v)
	r.origin(k, v, source)
	r.origins[k.Name] = w
	return nil
}

// refuse notes a loosening line of the workspace's file, unless the content is
// trusted.
func (r *resolution) refuse(k *Key, v any) (bool, error) {
	ok, err := r.trusted()
	if err != nil || ok {
		return false, err
	}
	r.note("%s: %s = %s would loosen the policy; read the file and run `hutch trust`", r.own.whereOf(k), k.Name, format(v))
	r.force.Untrusted = append(r.force.Untrusted, Origin{Key: k.Name, Value: format(v), Source: r.own.whereOf(k)})
	return true, nil
}

// concrete turns a share of the host's memory into bytes.
func (r *resolution) concrete(k *Key, v any) (any, error) {
	size, ok := v.(Size)
	if !ok || size >= 0 {
		return v, nil
	}
	memory := r.Memory
	if memory == nil {
		memory = hostMemory
	}
	all, err := memory()
	if err != nil {
		return nil, fmt.Errorf("%s: %s of the host's memory, which cannot be read: %w", k.Name, size, err)
	}
	return Size(all / 100 * -int64(size)), nil
}

// gather decides a key that several sources add to.
func (r *resolution) gather(k *Key) error {
	switch k.order {
	case lessNamed:
		return r.ports(k)
	case moreDoors:
		return r.assignments(k)
	}
	var all []string
	add := func(list []string, source string) error {
		var fresh []string
		for _, element := range list {
			element, err := r.place(k, element)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", source, k.Name, err)
			}
			if !slices.Contains(all, element) {
				fresh, all = append(fresh, element), append(all, element)
			}
		}
		if len(fresh) > 0 {
			r.origin(k, fresh, source)
		}
		return nil
	}
	for _, l := range r.layers {
		if v := k.get(&l.Policy); v != nil {
			if err := add(v.([]string), l.where(k)); err != nil {
				return err
			}
		}
	}
	if own := r.own.get(k); own != nil {
		list := own.([]string)
		if k.order == moreEach {
			list = slices.DeleteFunc(slices.Clone(list), func(element string) bool {
				element, err := r.place(k, element)
				return err == nil && slices.Contains(all, element)
			})
		}
		loose := k.order == moreEach && len(list) > 0
		if loose {
			var err error
			if loose, err = r.refuse(k, list); err != nil {
				return err
			}
		}
		if !loose {
			if err := add(list, r.own.whereOf(k)); err != nil {
				return err
			}
		}
	}
	k.apply(r.force, all)
	return nil
}

// place makes a path of a document absolute.
func (r *resolution) place(k *Key, text string) (string, error) {
	if !strings.HasPrefix(k.Name, "paths.") {
		return text, nil
	}
	if rest, ok := strings.CutPrefix(text, "~/"); ok {
		if r.Home == nil {
			return "", fmt.Errorf("%q: no home is known", text)
		}
		home, err := r.Home()
		if err != nil {
			return "", err
		}
		return filepath.Join(home, rest), nil
	}
	if strings.HasPrefix(text, "/") {
		return filepath.Clean(text), nil
	}
	return text, nil
}

// ports decides what may be connected to or listened at. A list that names none
// allows all; so the sources' lists add up only among those that have one, and
// the workspace's list is cut to what they share.
func (r *resolution) ports(k *Key) error {
	var all []uint16
	said, open := false, false
	w := fromDefault
	for _, l := range r.layers {
		v := k.get(&l.Policy)
		if v == nil {
			continue
		}
		list := v.([]uint16)
		said, w = true, l.weight
		open = open || len(list) == 0
		all = append(all, list...)
		r.origin(k, list, l.where(k))
	}
	if open {
		all, said = nil, false
	}
	if own := r.own.get(k); own != nil && w < fromEnvironment {
		list := own.([]uint16)
		beyond := said && (len(list) == 0 || slices.ContainsFunc(list, func(p uint16) bool { return !slices.Contains(all, p) }))
		loose := false
		if beyond {
			var err error
			if loose, err = r.refuse(k, list); err != nil {
				return err
			}
		}
		switch {
		case !loose: // what it names, and no more
			all = list
		case len(list) > 0:
			shared := slices.DeleteFunc(slices.Clone(list), func(p uint16) bool { return !slices.Contains(all, p) })
			if len(shared) == 0 {
				return fmt.Errorf("%s: %s = %s shares no port with %s, which the user allows; remove the line", r.own.whereOf(k), k.Name, format(list), format(all))
			}
			all = shared
		}
		if !loose || len(list) > 0 {
			r.force.Origins = slices.DeleteFunc(r.force.Origins, func(o Origin) bool { return o.Key == k.Name })
			r.origin(k, all, r.own.whereOf(k))
		}
	}
	slices.Sort(all)
	k.apply(r.force, slices.Compact(all))
	return nil
}

// assignments decides which variables are set: of two that name one, the
// stronger source's counts.
func (r *resolution) assignments(k *Key) error {
	set := map[string]string{}
	source := map[string]string{}
	add := func(doc *Policy, where string) {
		if v := k.get(doc); v != nil {
			for name, text := range v.(map[string]string) {
				set[name], source[name] = text, where
			}
		}
	}
	if own := r.own.get(k); own != nil {
		doors := map[string]string{}
		plain := map[string]string{}
		for name, text := range own.(map[string]string) {
			if view.Door(name) {
				doors[name] = text
			} else {
				plain[name] = text
			}
		}
		if len(doors) > 0 {
			loose, err := r.refuse(k, doors)
			if err != nil {
				return err
			}
			if !loose {
				plain = own.(map[string]string)
			}
		}
		for name, text := range plain {
			set[name], source[name] = text, r.own.whereOf(k)
		}
	}
	for _, l := range r.layers {
		add(&l.Policy, l.where(k))
	}
	k.apply(r.force, set)
	var bySource []string
	for _, s := range source {
		if !slices.Contains(bySource, s) {
			bySource = append(bySource, s)
		}
	}
	slices.Sort(bySource)
	for _, s := range bySource {
		from := map[string]string{}
		for name := range set {
			if source[name] == s {
				from[name] = set[name]
			}
		}
		r.origin(k, from, s)
	}
	return nil
}

// finish settles what follows from several keys together.
func (r *resolution) finish() error {
	f := r.force
	if !f.FSRead && f.FSWrite {
		read, write := f.Origin("capabilities.fs_read"), f.Origin("capabilities.fs_write")
		if r.origins["capabilities.fs_write"] >= r.origins["capabilities.fs_read"] {
			return fmt.Errorf("capabilities.fs_write (%s) needs capabilities.fs_read, which is off (%s); change one of them", write, read)
		}
		f.FSWrite = false
		for i := range f.Origins {
			if f.Origins[i].Key == "capabilities.fs_write" {
				f.Origins[i].Value, f.Origins[i].Source = "false", "follows from capabilities.fs_read, "+read
			}
		}
	}
	if !f.Network && (len(f.Connect) > 0 || len(f.Bind) > 0) && r.origins["capabilities.network"] != fromWorkspace {
		for _, key := range []string{"network.connect", "network.bind"} {
			if source := f.Origin(key); source != "" {
				r.note("%s: %s has no effect: capabilities.network is off (%s)", source, key, f.Origin("capabilities.network"))
			}
		}
	}
	return nil
}

// Origin returns the source of a key; "" where none said anything of it.
func (f *InForce) Origin(key string) string {
	for _, o := range f.Origins {
		if o.Key == key {
			return o.Source
		}
	}
	return ""
}

// Asked reports whether somebody said something of a key, beside the profile
// default.
func (f *InForce) Asked(key string) bool {
	source := f.Origin(key)
	return source != "" && source != "profile default"
}
