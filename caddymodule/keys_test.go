package caddymodule

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// aKeyFile writes a file of keys. Each entry is `NAME SECRET[,SECRET] [JSON fields]`.
func aKeyFile(entries ...string) string {
	var out []string
	for _, e := range entries {
		parts := append(strings.SplitN(e, " ", 3), "")
		var hashes []string
		for secret := range strings.SplitSeq(parts[1], ",") {
			hashes = append(hashes, hashOf(secret).String())
		}
		list, _ := json.Marshal(hashes)
		entry := fmt.Sprintf(`{"name": %q, "hashes": %s`, parts[0], list)
		if parts[2] != "" {
			entry += ", " + parts[2]
		}
		out = append(out, entry+"}")
	}
	return "{\"keys\": [\n" + strings.Join(out, ",\n") + "\n]}\n"
}

func TestKeysAreFoundBySecret(t *testing.T) {
	table, err := parseKeys([]byte(aKeyFile(
		"ann sk-1,sk-2",
		`bob sk-3 "class": 0, "models": ["m"], "concurrent": 2, "per_minute": 3`,
	)))
	if err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]string{
		"sk-1": "ann", "sk-2": "ann", "sk-3": "bob",
		"sk-4": "", "": "", "SK-1": "", "sk-1 ": "", hashOf("sk-1").String(): "",
	} {
		got := ""
		if k := table.find(secret); k != nil {
			got = k.name
		}
		if got != want {
			t.Errorf("secret %q: got key %q, want %q", secret, got, want)
		}
	}
	ann, bob := table.find("sk-1"), table.find("sk-3")
	if ann.class != nil || ann.models != nil || ann.concurrent != 0 || ann.perMinute != 0 {
		t.Errorf("got %+v, want no class, no models and no limits", ann)
	}
	if bob.class == nil || *bob.class != 0 || len(bob.models) != 1 || bob.concurrent != 2 || bob.perMinute != 3 {
		t.Errorf("got %+v, want what its entry says", bob)
	}
	if none, err := parseKeys([]byte(`{"keys": []}`)); err != nil || none.find("sk-1") != nil {
		t.Errorf("a file without keys: got %v, %v, want one that lets nobody in", none, err)
	}
}

func TestBadFilesOfKeysAreRefused(t *testing.T) {
	const secret = "sk-4815162342"
	good := hashOf("x").String()
	for name, c := range map[string]struct{ file, want string }{
		"empty":           {"", "ends too early"},
		"cut off":         {`{"keys": [`, "ends too early"},
		"lines of keys":   {secret + "\n", "line 1: it is not JSON"},
		"a comma":         {"{\"keys\": [\n{\"name\": \"a\",}\n]}", "line 2: it is not JSON"},
		"more behind it":  {aKeyFile("a x") + "{}", "something follows the end"},
		"no keys":         {`{}`, `there are no "keys"`},
		"null":            {`null`, `there are no "keys"`},
		"a map":           {`{"keys": {"` + secret + `": 1}}`, "a JSON object stands where a list"},
		"unknown field":   {"{\"keys\": [\n{\"" + secret + "\": 1}]}", "line 2: unknown field; a key has name, hashes"},
		"number as name":  {`{"keys": [{"name": 4815162342}]}`, "a JSON number stands where a string"},
		"class in words":  {aKeyFile(`a x "class": "high"`), "a JSON string stands where a whole number"},
		"half a class":    {aKeyFile(`a x "class": 1.5`), "a JSON number stands where a whole number"},
		"no name":         {`{"keys": [{"hashes": ["` + good + `"]}]}`, "key 1: it has no name"},
		"name of escapes": {`{"keys": [{"name": "a\u001b[2J"}]}`, "key 1: its name is not fit"},
		"long name":       {aKeyFile(strings.Repeat("n", maxKeyName+1) + " x"), "key 1: its name is not fit"},
		"name twice":      {aKeyFile("a x", "a y"), "key 2: there is a key a already"},
		"hash twice":      {aKeyFile("a x", "b x"), "key b: key a has the same hash"},
		"no hash":         {`{"keys": [{"name": "a"}]}`, "key 1: a has no hashes"},
		"plain secret":    {`{"keys": [{"name": "a", "hashes": ["` + secret + `"]}]}`, "hash 1 of a is none"},
		"short hash":      {`{"keys": [{"name": "a", "hashes": ["` + good + `", "sha256:4815162342"]}]}`, "hash 2 of a is none"},
		"other scheme":    {`{"keys": [{"name": "a", "hashes": ["md5` + good[6:] + `"]}]}`, "hash 1 of a is none"},
		"class too high":  {aKeyFile(`a x "class": 10`), "class of a: want a number from 0 to 9"},
		"class below 0":   {aKeyFile(`a x "class": -1`), "class of a"},
		"no models":       {aKeyFile(`a x "models": []`), "models of a: want names"},
		"model of no name": {
			aKeyFile(`a x "models": [""]`), "models of a: want names",
		},
		"none at once":      {aKeyFile(`a x "concurrent": 0`), "concurrent of a: want a number from 1"},
		"minus 1 a minute":  {aKeyFile(`a x "per_minute": -1`), "per_minute of a: want a number from 1"},
		"too many a minute": {aKeyFile(`a x "per_minute": 100001`), "per_minute of a: want a number from 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseKeys([]byte(c.file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want it to say %q", err, c.want)
			}
			if strings.Contains(err.Error(), "4815162342") {
				t.Errorf("%v: it repeats what could be a secret", err)
			}
		})
	}
}

// FuzzKeys: whatever is in a file, it is refused, or each of its keys is complete and is
// not let in by anything but its secrets.
func FuzzKeys(f *testing.F) {
	f.Add(aKeyFile("ann sk-1,sk-2", `bob sk-3 "class": 3, "models": ["m"], "concurrent": 2, "per_minute": 3`))
	f.Add(`{"keys": []}`)
	f.Add(`{"keys": [{"name": "a", "hashes": ["sha256:00"]}]} x`)
	f.Fuzz(func(t *testing.T, content string) {
		table, err := parseKeys([]byte(content))
		if err != nil {
			if strings.ContainsFunc(err.Error(), unprintable) {
				t.Errorf("%q cannot be shown", err)
			}
			return
		}
		for name, k := range table.keys {
			if k.name != name || checkKeyName(name) != nil || len(k.hashes) == 0 || k.use == nil {
				t.Errorf("%q is accepted as %+v", name, k)
			}
			for _, h := range k.hashes {
				if table.bySecret[table.blinded(h)] != k || table.find(h.String()) != nil {
					t.Errorf("key %q is not found by its secret alone", name)
				}
			}
		}
	})
}
