package caddymodule

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// key is an entry of a file of keys: somebody who may ask, and how much.
type key struct {
	name       string
	hashes     []keyHash
	class      *int     // nil: the handler's
	models     []string // nil: all
	concurrent int      // requests at once; 0: no limit
	perMinute  int      // requests begun in any minute; 0: no limit
	use        *usage   // survives the entry, see (*keyFile).look
}

// keyHash is the SHA-256 of a secret. Secrets are random (`caddy fleet key` makes
// them of 256 bits), so that nothing slower is called for.
type keyHash [sha256.Size]byte

// hashScheme stands in front of a hash, should there ever be others.
const hashScheme = "sha256:"

func hashOf(secret string) keyHash { return sha256.Sum256([]byte(secret)) }

// String is the hash as the file has it.
func (h keyHash) String() string { return hashScheme + hex.EncodeToString(h[:]) }

// keyEntry is a key as the file has it.
type keyEntry struct {
	Name       string    `json:"name"`
	Hashes     []string  `json:"hashes"`
	Class      *int      `json:"class,omitempty"`
	Models     *[]string `json:"models,omitempty"`
	Concurrent *int      `json:"concurrent,omitempty"`
	PerMinute  *int      `json:"per_minute,omitempty"`
}

const keyFields = "name, hashes, class, models, concurrent, per_minute"

// The most that a file of keys may say.
const (
	maxKeyFile    = 8 << 20
	maxKeyName    = 64     // bytes
	maxConcurrent = 100000 // requests
	maxPerMinute  = 100000 // requests
	maxClass      = 9
)

// keyTable is what a file of keys says.
type keyTable struct {
	keys map[string]*key // by name

	// bySecret finds the key of a hash by an HMAC of it, whose key is drawn anew for
	// each table: how long a look-up takes says nothing about the hashes that are there.
	bySecret map[keyHash]*key
	blind    [sha256.Size]byte
}

// find returns the key of a secret; nil: nobody has it.
func (t *keyTable) find(secret string) *key {
	h := hashOf(secret)
	k := t.bySecret[t.blinded(h)]
	if k == nil {
		return nil
	}
	same := 0
	for _, have := range k.hashes {
		same |= subtle.ConstantTimeCompare(have[:], h[:])
	}
	if same == 0 {
		return nil
	}
	return k
}

func (t *keyTable) blinded(h keyHash) (b keyHash) {
	m := hmac.New(sha256.New, t.blind[:])
	m.Write(h[:])
	m.Sum(b[:0])
	return b
}

// parseKeys reads a file of keys. Errors name the line or the key; of what stands there
// they repeat nothing that could be a secret.
func parseKeys(content []byte) (*keyTable, error) {
	var file struct {
		Keys *[]keyEntry `json:"keys"`
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, jsonError(content, d.InputOffset(), err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("line %d: something follows the end", lineAt(content, d.InputOffset()))
	}
	if file.Keys == nil {
		return nil, errors.New(`there are no "keys": want {"keys": [{"name": …, "hashes": ["sha256:…"]}]}`)
	}
	t := &keyTable{keys: make(map[string]*key), bySecret: make(map[keyHash]*key)}
	rand.Read(t.blind[:])
	for i, e := range *file.Keys {
		k, err := e.key()
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		if t.keys[k.name] != nil {
			return nil, fmt.Errorf("key %d: there is a key %s already; a second secret goes into its hashes", i+1, k.name)
		}
		t.keys[k.name] = k
		for _, h := range k.hashes {
			b := t.blinded(h)
			if other := t.bySecret[b]; other != nil {
				return nil, fmt.Errorf("key %s: key %s has the same hash; a secret is that of one key", k.name, other.name)
			}
			t.bySecret[b] = k
		}
	}
	return t, nil
}

// key checks an entry.
func (e keyEntry) key() (*key, error) {
	if err := checkKeyName(e.Name); err != nil {
		return nil, err
	}
	k := &key{name: e.Name, class: e.Class, use: new(usage)}
	if len(e.Hashes) == 0 {
		return nil, fmt.Errorf("%s has no hashes", e.Name)
	}
	for i, s := range e.Hashes {
		digits, ok := strings.CutPrefix(s, hashScheme)
		b, err := hex.DecodeString(digits)
		if !ok || err != nil || len(b) != sha256.Size {
			return nil, fmt.Errorf("hash %d of %s is none: want sha256: and 64 hexadecimal digits, as `caddy fleet key` prints", i+1, e.Name)
		}
		k.hashes = append(k.hashes, keyHash(b))
	}
	if c := e.Class; c != nil && (*c < 0 || *c > maxClass) {
		return nil, fmt.Errorf("class of %s: want a number from 0 to %d", e.Name, maxClass)
	}
	if e.Models != nil {
		if k.models = *e.Models; len(k.models) == 0 || slices.Contains(k.models, "") {
			return nil, fmt.Errorf("models of %s: want names; leave it out for all models", e.Name)
		}
	}
	var err error
	if k.concurrent, err = limitOf(e.Concurrent, maxConcurrent); err != nil {
		return nil, fmt.Errorf("concurrent of %s: %w", e.Name, err)
	}
	if k.perMinute, err = limitOf(e.PerMinute, maxPerMinute); err != nil {
		return nil, fmt.Errorf("per_minute of %s: %w", e.Name, err)
	}
	return k, nil
}

// limitOf refuses 0, which is either nobody or everybody, depending on who reads it.
func limitOf(n *int, most int) (int, error) {
	if n == nil {
		return 0, nil
	}
	if *n < 1 || *n > most {
		return 0, fmt.Errorf("want a number from 1 to %d; leave it out for no limit", most)
	}
	return *n, nil
}

// checkKeyName refuses names that cannot stand in a log or a placeholder.
func checkKeyName(name string) error {
	if name == "" {
		return errors.New("it has no name")
	}
	if len(name) > maxKeyName || !showable(name) {
		return fmt.Errorf("its name is not fit to be shown: want at most %d bytes of printable characters", maxKeyName)
	}
	return nil
}

// showable reports whether a name can be shown as it is.
func showable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, unprintable)
}

// jsonError says where the JSON of a file is wrong.
func jsonError(content []byte, at int64, err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("line %d: it is not JSON: %w", lineAt(content, e.Offset), err)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("line %d: a JSON %s stands where %s is wanted", lineAt(content, e.Offset), kindOf(e.Value), wantedFor(e))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return fmt.Errorf("line %d: unknown field; a key has %s", lineAt(content, at), keyFields)
}

// kindOf leaves out the figure of a number: it could be a secret.
func kindOf(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	return kind
}

func wantedFor(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "int":
		return "a whole number"
	case "slice":
		return "a list"
	case "struct":
		return "an object"
	}
	return "a " + e.Type.Kind().String()
}

func lineAt(content []byte, offset int64) int {
	return 1 + bytes.Count(content[:min(max(0, offset), int64(len(content)))], []byte("\n"))
}
