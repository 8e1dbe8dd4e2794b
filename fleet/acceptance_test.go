package fleet

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// acceptance says which test holds each acceptance case of a fleet manager, or why the
// case cannot arise here. The cases are those that the public project
// basecompute/superfluid states or implies for its own manager, in our numbering: O
// orchestration, K concurrency, L liveness, J joining, H the HTTP surface, Z what its
// code implies. Connections are multiplexed here and lanes are counts, so there are no
// connections per lane to pick, fill or replace. The others are in linkAcceptance.
var acceptance = map[string]string{
	"O1":  "TestLeastLoadedCountsRecordsAndOpenGenerations",
	"O2":  "TestAnswerIsHandedOnAndTheLaneGivenBack",
	"O3":  "TestRoundRobinKeepsThePlaceOfNodesThatAreDown",
	"O4":  "TestRequestsGoWhereTheirModelIs",
	"O5":  "TestNodeThatIsGoneBeforeTheStartIsReplaced",
	"O6":  "TestRequestsGoWhereTheirModelIs",
	"O7":  "TestManyAtOnceGetEachItsOwnAnswer",
	"O8":  "TestAnswerIsHandedOnAndTheLaneGivenBack",
	"O9":  "TestCancelEndsASessionWhereverItIs",
	"O10": "TestParkFreesTheLaneAndKeepsWhatWasDelivered, TestResumeOfWhatIsNotParkedIsRefused",
	"O11": "TestLostNodeIsReplacedAndNothingIsRepeated",
	"O12": "TestAnswerSurvivesEveryFaultAtEveryToken",
	"O13": "TestTooLongARequestLeavesTheNodeAlone",
	"O14": "TestTooLongGoesOnlyWhereItFits",
	"O15": "TestTooLongARequestLeavesTheNodeAlone",
	"O16": "TestTooLongARequestLeavesTheNodeAlone",
	"O17": "TestGrownRequestGoesOnlyWhereItFits",
	"O18": "TestNothingKnownIsATie",
	"O19": "TestRequestsGoWhereTheirModelIs",
	"O20": "TestTooLongARequestLeavesTheNodeAlone",
	"K1":  "TestLanesAddUpUnderAnySchedule",
	"K2":  "TestHeadsShareTheLanesOfANode",
	"K3":  "-: no connections per lane",
	"L1":  "TestNothingIsLostOrRepeatedInManyBreaks",
	"L2":  "-: no connection of ours is idle for its own sake",
	"L3":  "TestNodeThatRefusesIsProbedMoreAndMoreSeldom",
	"L4":  "TestGrownRequestGoesOnlyWhereItFits",
	"L5":  "TestProbeOnDemandFindsWhatChanged",
	"L6":  "TestOutageTellsTheOperatorWhatToChange",
	"L7":  "TestMutePeerThatIsDialledIsGivenUp",
	"L8":  "TestParkFreesTheLaneAndKeepsWhatWasDelivered",
	"L9":  "-: no connections per lane",
	"J1":  "TestNodeThatDialsInIsUsedAndGetsItsPlaceBack, TestNodeThatDialsInIsPlacedLikeAnyOther",
	"J2":  "-: one multiplexed link a node",
	"J3":  "TestWrongTokenIsToldOnBothSides",
	"H9":  "TestClientThatLeavesFreesTheSlotOnTheNode",
	"Z1":  "TestNodeThatDialsInIsUsedAndGetsItsPlaceBack",
	"Z2":  "TestLanesAddUpUnderAnySchedule",
	"Z3":  "TestWaitingEndsAtTheLimitAndAtTheDeadline",
	"Z4":  "TestWaitingEndsAtTheLimitAndAtTheDeadline",
	"Z5":  "TestAnswerSurvivesEveryFaultAtEveryToken",
	"Z6":  "TestFailedNodeDoesNotGetTheRequestAgain",
	"Z7":  "TestNoAttemptBeginsAfterTooLong",
	"Z8":  "TestLightRequestDoesNotWaitForALane",
	"Z9":  "TestNodeThatDialsInIsUsedAndGetsItsPlaceBack, TestTakenNameIsRefusedWithTheReason",
	"Z10": "-: no connections per lane",
	"Z11": "-: closing the generation's stream is what frees it; nothing is deferred",
	"Z12": "TestSilentNodeIsAskedWhetherItIsThere, TestProbeOnDemandFindsWhatChanged",
	"Z13": "TestGoingOnNeedsTheSameModelAndTheFeature, TestAnotherBuildGoesOnOnlyIfMixed",
	"Z14": "-: the index of caches has tests of its own",
	"Z15": "TestCallIsAskedWholeElsewhereWhenItsNodeIsLost, TestWhatCannotGoOnIsNotRepeated",
	"Z16": "TestCallAllReachesEveryInstanceAndTellsOfEach, TestCallToAllIsRepeatedForThoseWhoComeLater",
	"Z17": "TestLoadIsSeenDuringAGeneration",
	"Z18": "TestBusyFastNodeAgainstOneThatNeverServed, TestTypicalRateRoundsDown, TestOldLoadDoesNotCountButOwnLanesDo, TestPoolFilterAndContexts",
	"Z19": "TestClaimsAddUpUnderAllOperations",
	"Z20": "TestLinkMayBreakAndComeBack",
	"Z21": "TestCancelEndsASessionWhereverItIs, TestCancelHoldsForWhatWaitsOrDidNotStart, TestCancelEndsACall",
	"Z22": "TestLeaseEndsAndIsRenewed",
}

// Every case names a test that is there.
func TestAcceptanceCasesAreHeld(t *testing.T) {
	found := make(map[string]bool)
	name := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range name.FindAllStringSubmatch(string(source), -1) {
			found[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(acceptance)
	maps.Copy(all, linkAcceptance)
	for id, held := range all {
		if why, ok := strings.CutPrefix(held, "-: "); ok {
			if why == "" {
				t.Errorf("%s: no reason is given", id)
			}
			continue
		}
		for test := range strings.SplitSeq(held, ", ") {
			if !found[test] {
				t.Errorf("%s: there is no test %s", id, test)
			}
		}
	}
}
