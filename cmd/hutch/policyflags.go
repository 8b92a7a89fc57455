package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"hutch"
	"hutch/internal/policy"
)

// policyFlags are the flags that say something of the policy, made from its
// table of keys.
type policyFlags struct {
	policy    hutch.Policy
	file      string
	timeoutMS int64
	env       []string
}

func (p *policyFlags) add(flags *pflag.FlagSet) {
	keys := policy.Keys()
	for i := range keys {
		k := &keys[i]
		if k.Flag == "" {
			continue
		}
		f := flags.VarPF(&keyFlag{p, k}, k.Flag, "", k.FlagHelp())
		if k.Says != "" {
			f.NoOptDefVal = "true"
		}
	}
	flags.StringVar(&p.file, "policy", "", "a file with a policy, in TOML or JSON")
	flags.Func("timeout-ms", "the timeout in `milliseconds`; 0 for none", p.setTimeoutMS)
	flags.StringArrayVarP(&p.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on; may be repeated")
}

// keyFlag is the flag of one key.
type keyFlag struct {
	to  *policyFlags
	key *policy.Key
}

func (f *keyFlag) Set(text string) error { return f.key.SetFlag(&f.to.policy, text) }

func (f *keyFlag) String() string { return "" }

func (f *keyFlag) Type() string { return f.key.Type() }

func (p *policyFlags) setTimeoutMS(text string) error {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > maxTimeout.Milliseconds() {
		return fmt.Errorf("give a whole number, 0 to %d", maxTimeout.Milliseconds())
	}
	p.timeoutMS = ms
	return nil
}

const maxTimeout = 10 * 365 * 24 * time.Hour // beyond it a number is a mistake

// request puts what the flags say into a request.
func (p *policyFlags) request(opts *hutch.Options, changed func(string) bool) error {
	if changed("timeout-ms") {
		if changed("timeout") {
			return errors.New("--timeout and --timeout-ms were both given; give one of them")
		}
		timeout := hutch.Duration(p.timeoutMS * 1e6)
		p.policy.Limits.Timeout = &timeout
	}
	for _, e := range p.env {
		name, value, set := strings.Cut(e, "=")
		switch {
		case name == "":
			return fmt.Errorf("--env %q: give NAME=VALUE or NAME", e)
		case !set:
			p.policy.Env.Pass = append(p.policy.Env.Pass, name)
		default:
			if p.policy.Env.Set == nil {
				p.policy.Env.Set = map[string]string{}
			}
			p.policy.Env.Set[name] = value
		}
	}
	if changed("policy") && p.file == "" {
		return errors.New("--policy: the name is empty; give a file")
	}
	opts.Policy, opts.PolicyFile, opts.PolicyBy = p.policy, p.file, "flag"
	return nil
}
