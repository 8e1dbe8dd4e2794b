package caddymodule

import (
	"strings"
	"testing"
)

// What the command prints for the file lets in who has what it prints for them.
func TestPrintedKeysFit(t *testing.T) {
	seen := make(map[string]bool)
	for _, name := range []string{"ann", `böb "x" <&>`} {
		var out strings.Builder
		if err := printKey(&out, name); err != nil {
			t.Fatal(err)
		}
		secret, entry, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		table, err := parseKeys([]byte(`{"keys": [` + entry + `]}`))
		if err != nil {
			t.Fatalf("%v in %s", err, entry)
		}
		if k := table.find(secret); k == nil || k.name != name {
			t.Errorf("got %+v for the secret, want %s", k, name)
		}
		if strings.Contains(entry, secret) || len(secret) < 50 || seen[secret] {
			t.Errorf("got secret %q and entry %s", secret, entry)
		}
		seen[secret] = true
	}
	if err := printKey(new(strings.Builder), "a\nb"); err == nil {
		t.Error("a name of two lines was accepted")
	}
}
