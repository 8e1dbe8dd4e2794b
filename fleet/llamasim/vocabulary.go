package llamasim

import "strings"

// What the model writes with. Words are at most five letters so that each is one
// token; "s", "think" and "tool" must not stand without a space before them, or a
// "<" in front would make a marker of them.
var words = strings.Fields(`
	a about above after again air all along also and any apple are as ask at away
	back bank bear began begin below best big bird black blue boat body book both
	boy bread bring brown build busy but by call came can car care carry cat catch
	chair child city clean clear clock close cloud cold color come cook cool could
	count cover cross crowd cut dance dark day deep did do dog door down draw dream
	dress drink drive drop dry each early earth east eat edge egg end even ever
	every eye face fact fall far farm fast feel few field find fire first fish five
	floor fly food foot force form four fox free fresh from front fruit full game
	gave girl give glass go gold good grass great green grew group grow had half
	hand happy hard has have he head hear heart heat heavy held help her here high
	hill him his hold home horse hot hour house how idea if in inch iron is island
	it jump just keep kind king knew know land large last late laugh lay lead learn
	leave left less let life light like line list live long look lost lot low made
	main make many map mark me mean meet men might mile milk mind miss money moon
	more most move much music must my name near need never new next night no north
	note now of off often oil old on once one open or order other our out over own
	page paper part pass path plain plan plant play point poor power press pull put
	queen quick quiet rain ran reach read ready real red rest rich ride right ring
	river road rock room round rule run said sail salt same sand saw say school sea
	see seed seem self sell send set seven shape she ship shoe short show side sing
	sit six size skin sky sleep slow small snow so soft some song soon sound south
	space speak spell spend spoke stand star start state stay steel step still stone
	stood stop store storm story study such sugar sun swim table take talk tall tell
	ten than that the them then there these they thing this those three time to told
	too took top town trade train tree true try turn two under unit until up us use
	very view visit voice wait walk wall want war warm was watch water wave way we
	week well went were west what wheel when where which while white who why wide
	wild will wind wing winter wish with woman wood word work world would write year
	yes yet you young your zero`)

// titles begin a sentence, a line or a quotation.
var titles = []string{
	"After", "All", "An", "As", "At", "But", "By", "For", "From", "Here", "How", "If",
	"In", "It", "Let", "Maybe", "No", "Not", "Now", "Of", "On", "One", "Or", "Our",
	"Over", "She", "So", "Some", "That", "The", "Then", "There", "They", "This", "To",
	"We", "What", "When", "Where", "While", "Who", "With", "Yes", "You",
}

var common = []string{".", ",", ",", ".", ";", ":", "!", "?", "\n", "-", "(", ")"}

// rare holds what JSON, SSE and UTF-8 have to be right about: quotes, backslashes,
// control characters, letters of two and three bytes, characters of four (which
// take two tokens), and the beginning of a marker that is none.
var rare = []string{
	"\"", "\"", "\\", "\\", "'", "`", "\n", "\n", "\t", " ", "<", ">", "&", "{", "}",
	"[", "]", "*", "#", "+", "=", "%", "$", "@", "~", "^", "0", "1", "2", "3", "4", "5",
	"6", "7", "8", "9", "é", "ü", "ß", "ñ", "ø", "ж", "я", "€", "—", "…", "日", "本",
	"語", "中", "한", "국", "어", "\u2028", "🦊", "🚀", "🙂", "🌍", "𝄞",
}

func init() {
	// Longer words would be two tokens; the list above is easier to keep when it
	// may hold some.
	kept := words[:0]
	for _, w := range words {
		if len(w) <= wordLetters {
			kept = append(kept, w)
		}
	}
	words = kept
}
