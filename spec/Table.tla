-------------------------------- MODULE Table -------------------------------
\* Prints the rule whole, for small numbers: mark, offer, verdict, and the mark afterwards. Holder 0 is bare.
EXTENDS Rule, TLC
Stamps == [t : 1..2, s : 0..2, h : 0..2]
ASSUME \A mark \in Stamps \cup {NoMark}, offer \in Stamps :
    LET verdict == Verdict(mark, offer)
        after == IF verdict = "admit" THEN Raised(mark, offer) ELSE mark
    IN PrintT(<<mark.t, mark.s, mark.h, offer.t, offer.s, offer.h, verdict, after.t, after.s, after.h>>)
=============================================================================
