package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/linkf"
)

func TestTokensAreMadeForTheirOwnerOnly(t *testing.T) {
	var printed strings.Builder
	file := filepath.Join(t.TempDir(), "token")
	for _, name := range []string{"", file} {
		if err := writeToken(&printed, name); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{printed.String(), string(written)} {
		if _, err := linkf.ParseToken(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if printed.String() == string(written) {
		t.Error("both are the same")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v; want 0600", info.Mode(), err)
	}
	if err := writeToken(&printed, file); err == nil {
		t.Error("a file that was there was written over")
	}
	if again, err := os.ReadFile(file); err != nil || string(again) != string(written) {
		t.Errorf("the file changed, %v", err)
	}
}
