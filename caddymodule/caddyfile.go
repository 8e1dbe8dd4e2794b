package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// block is what may stand in a block of a Caddyfile: each word, and how the rest of
// its line is read.
type block map[string]option

// option is one word of a block.
type option struct {
	read   func(*caddyfile.Dispenser) error
	repeat bool // it may stand there more than once
}

// parse reads the block that begins after the current line, if one does. Unknown
// words and repetitions are errors.
func (b block) parse(d *caddyfile.Dispenser, name string) error {
	seen := make(map[string]bool)
	last := name
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word := d.Val()
		if word == "{" {
			return d.Errf("%s takes no block", last)
		}
		o, ok := b[word]
		if !ok {
			return d.Errf("unknown option %q in %s: one of %s", word, name, list(slices.Sorted(maps.Keys(b))))
		}
		if seen[word] && !o.repeat {
			return d.Errf("%s is there twice in %s", word, name)
		}
		seen[word], last = true, word
		if err := o.read(d); err != nil {
			return err
		}
	}
	return nil
}

// list writes names for a message.
func list(names []string) string { return strings.Join(names, ", ") }

// text reads one argument.
func text(to *string) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		if !d.AllArgs(to) {
			return d.ArgErr()
		}
		return nil
	}
}

// flag reads a word without arguments.
func flag(to *bool) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		if d.NextArg() {
			return d.ArgErr()
		}
		*to = true
		return nil
	}
}

// checked reads one argument that check has to accept.
func checked(to *string, check func(string) error) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		if !d.AllArgs(to) {
			return d.ArgErr()
		}
		if err := check(*to); err != nil {
			return d.Err(err.Error())
		}
		return nil
	}
}

// maxSize is the largest size that can be configured.
const maxSize = 1 << 40

// size reads a number of bytes above 0, such as 64MiB.
func size(to *int64) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		word, arg := d.Val(), ""
		if !d.AllArgs(&arg) {
			return d.ArgErr()
		}
		n, err := humanize.ParseBytes(arg)
		if err != nil || n < 1 || n > maxSize {
			return d.Errf("%s %q: want a size such as 64MiB", word, arg)
		}
		*to = int64(n)
		return nil
	}
}

// number reads a whole number from 1 to most; most 0: without an upper limit.
func number[T int | int64](to *T, most T) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		word, arg := d.Val(), ""
		if !d.AllArgs(&arg) {
			return d.ArgErr()
		}
		n, err := strconv.ParseInt(arg, 10, 32)
		if err != nil || n < 1 || most > 0 && n > int64(most) {
			want := "a whole number from 1"
			if most > 0 {
				want = fmt.Sprintf("a whole number from 1 to %d", most)
			}
			return d.Errf("%s %q: want %s", word, arg, want)
		}
		*to = T(n)
		return nil
	}
}

// duration reads a duration above 0. word, if not empty, may stand in its place and
// means this value.
func duration(to *caddy.Duration, word string, means caddy.Duration) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		name, arg := d.Val(), ""
		if !d.AllArgs(&arg) {
			return d.ArgErr()
		}
		if word != "" && arg == word {
			*to = means
			return nil
		}
		v, err := caddy.ParseDuration(arg)
		if err != nil || v <= 0 {
			want := "a duration above 0, such as 10s"
			if word != "" {
				want = word + " or " + want
			}
			return d.Errf("%s %q: want %s", name, arg, want)
		}
		*to = caddy.Duration(v)
		return nil
	}
}
