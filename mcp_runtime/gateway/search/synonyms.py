"""Words that mean nearly the same in descriptions of tools.

A member says "delete", and an agent looks for "remove". The groups are general English. None is about one member.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping

from mcp_runtime.gateway.search.words import stem

GROUPS = """
add append insert attach put
create make new build generate start open
delete remove erase drop clear discard destroy trash
update edit change modify set adjust revise alter rename
get fetch retrieve read show display view see open load return look
list show enumerate all index browse overview inventory
find search query lookup locate discover match look
send post submit deliver push publish notify share forward
message email mail chat dm text note notification
run execute invoke launch trigger perform start
stop cancel abort terminate kill end halt
copy duplicate clone replicate
move rename transfer relocate migrate
save store write persist record keep remember
download fetch import pull
upload import push attach
convert transform translate turn change format parse
compute calculate determine evaluate solve count sum
compare diff difference versus change
check verify validate test inspect status confirm
describe explain detail info information metadata schema structure property stat
summarize summary digest overview abstract recap
file document text content page doc
directory folder path tree
image picture photo screenshot drawing media
video clip movie film media
audio sound music song recording
web website site page url link internet online http browser
database db sql table record row
table column schema sheet spreadsheet
repository repo project codebase git
commit history log revision change
branch checkout switch
issue ticket bug task
pull merge request pr
user person people member account contact customer
team group organization company
calendar event meeting appointment schedule booking
date time day clock hour timezone now today
schedule plan reminder timer alarm
weather forecast temperature climate
location place address city region coordinates map
route direction navigation distance travel trip
price cost quote rate amount fee value
buy purchase order pay payment checkout
money currency cash fund finance financial
stock share market ticker equity investment invest
flight airline plane airport
hotel accommodation lodging room stay
restaurant food meal dining recipe dish
job work career employment position
news article headline story
knowledge memory fact note observation insight
entity node object item element
relation relationship link edge connection connect relate
graph network chart plot diagram
chart plot graph visualize visualization draw
statistics stats metric analytics analysis analyze report
number count quantity total amount size
biggest largest maximum max highest top
smallest minimum min lowest
average mean
error failure exception fault problem
log trace record history
key secret token password credential
permission access right role allow allowed
login signin authenticate auth
code program script source function
package library module dependency
server host machine instance
container docker pod
deploy release publish ship
version release revision
language translate translation
word vocabulary term definition dictionary
paper research academic scholar study article
book library reading novel
product item goods shop store
question answer ask
idea suggestion recommend recommendation suggest
random shuffle
sort order rank arrange
filter select choose pick
unit measurement measure conversion convert
click press tap
type fill enter input
wait sleep pause delay
play game
health medical doctor symptom fitness
law legal court case
"""


@functools.cache
def synonyms() -> Mapping[str, tuple[str, ...]]:
    """Return the stems that mean nearly the same as each stem."""
    groups = [{stem(word) for word in line.split()} for line in GROUPS.strip().splitlines()]
    others: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        for word in group:
            others[word] |= group - {word}
    return {word: tuple(sorted(of_word)) for word, of_word in others.items()}
