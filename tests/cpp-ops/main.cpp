// Calls every operation from C++ with generated cases and compares the results with the reference.
#include "checks.hpp"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

int main(int count, char **arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: cpp-ops CASES\n");
        return 2;
    }
    std::ifstream file(arguments[1], std::ios::binary);
    Reader reader(std::vector<std::uint8_t>(std::istreambuf_iterator<char>(file), {}));
    std::map<std::string, const Check *> checks;
    for (const Check &check : all_checks()) {
        checks[check.operation] = &check;
    }
    const Engines engines;
    std::set<std::string> seen;
    std::set<std::string> echoed;
    int failed = 0;
    int number = 0;
    for (Case drawn; reader.next(drawn); ++number) {
        seen.insert(drawn.operation);
        try {
            checks.at(drawn.operation)->run(engines, drawn);
        } catch (const std::exception &error) {
            drawn.problems.emplace_back(error.what());
        }
        if (drawn.echoed) {
            echoed.insert(drawn.operation);
        }
        for (const std::string &problem : drawn.problems) {
            std::fprintf(stderr, "case %d, %s: %s\n", number, drawn.operation.c_str(), problem.c_str());
        }
        failed += drawn.problems.empty() ? 0 : 1;
    }
    for (const Check &check : all_checks()) {
        if (!seen.contains(check.operation)) {
            std::fprintf(stderr, "%s: no case\n", check.operation);
            ++failed;
        }
        if (!echoed.contains(check.operation)) {
            std::fprintf(stderr, "%s: no case ran through a kernel in C++\n", check.operation);
            ++failed;
        }
    }
    std::printf("%d cases of %zu operations, %zu of them through a kernel in C++, %d failed\n", number, seen.size(),
                echoed.size(), failed);
    return failed == 0 ? 0 : 1;
}
